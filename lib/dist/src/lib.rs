//! dist
