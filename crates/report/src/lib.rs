//! Renderings of a comparison.
