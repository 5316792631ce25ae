//! What changes parameters in place: never on the tape, so no gradient exists.

pub mod adamw;
pub mod ema;
pub mod norm;
pub mod sgd;
pub mod sum;
