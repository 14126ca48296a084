//! A random life of a log against a model: every acked message is there after any crash, once, in order.
