"""Records of benchmark runs: committed baselines of bytes, and what differs from them."""
