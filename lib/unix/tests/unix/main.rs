//! Tests of `unix` by its public interface, in one program.

mod common;
mod config;
mod frame;
mod power_cuts;
mod publish;
