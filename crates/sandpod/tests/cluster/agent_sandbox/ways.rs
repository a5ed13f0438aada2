//! The ways to a guest: each alone, and the first that works.
