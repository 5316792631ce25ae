//! Charts as PNG, and reports as HTML and Markdown. This crate does not depend on tensors or models.

#![forbid(unsafe_code)]

pub mod axis;
pub mod canvas;
pub mod colours;
pub mod document;
pub mod panel;
