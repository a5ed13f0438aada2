//! The client against a guest that can be made to fail in every way.

mod fake;
mod hostile;
mod loss;
mod network;
mod process;
mod real;
mod sharing;
mod transfer;
