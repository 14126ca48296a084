//! Stub of the skeleton.
