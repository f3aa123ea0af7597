//! Shared parts of charts: axes with round ticks, SVG elements, escaped text.
//!
//! A chart is self-contained: it loads no resources and runs no scripts. The caller decides on
//! content and colours.

mod axis;

use std::fmt::{self, Write as _};

pub(crate) use axis::{Axis, decade_ticks, ticks, time_ticks};

/// SVG elements, one per line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Svg(String);

impl Svg {
    /// Creates an empty chart.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Appends an element. Text in it must be [`escaped`].
    pub(crate) fn push(&mut self, element: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{element}");
    }

    /// Returns the SVG text.
    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

/// Escapes text for SVG and HTML, also within quotes.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[test]
fn markup_is_escaped() {
    assert_eq!(escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
    let mut svg = Svg::new();
    svg.push(format_args!("<g/>"));
    assert_eq!(svg.into_string(), "<g/>\n");
}
