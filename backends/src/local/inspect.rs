//! Looking at a log from outside.
