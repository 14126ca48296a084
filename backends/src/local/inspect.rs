//! Placeholder until the next commit.
