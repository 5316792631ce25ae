//! Charts as PNG: axes, curves and fields on a canvas. It knows no tensors and no models.

#![forbid(unsafe_code)]

pub mod axis;
pub mod canvas;
pub mod colours;
pub mod panel;
