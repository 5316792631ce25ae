//! Charts as PNG: axes, curves and fields on a canvas. This crate does not depend on tensors or models.

#![forbid(unsafe_code)]

pub mod axis;
pub mod canvas;
pub mod colours;
pub mod panel;
