//! Tests of the public interface of `unix`, in one program.

mod common;
mod config;
mod follow;
mod frame;
mod power_cuts;
mod publish;
