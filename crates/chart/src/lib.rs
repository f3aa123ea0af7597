//! What pictures have in common: axes with round ticks, elements of SVG, text that is no markup.
//!
//! A picture is text that stands alone: nothing in it is fetched, and nothing runs. What it shows and in which
//! colours is for who draws it.

mod axis;

use std::fmt::{self, Write as _};

pub use axis::{Axis, decade_ticks, ticks, time_ticks};

/// Elements of a picture, one a line.
#[derive(Clone, Debug, Default)]
pub struct Svg(String);

impl Svg {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an element. Text in it has to be [`escaped`].
    pub fn put(&mut self, element: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{element}");
    }

    /// Its text.
    #[must_use]
    pub fn into_string(self) -> String {
        self.0
    }
}

/// Text that shows as it is in SVG and HTML, also within quotes.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[test]
fn text_is_no_markup() {
    assert_eq!(escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
    let mut svg = Svg::new();
    svg.put(format_args!("<g/>"));
    assert_eq!(svg.into_string(), "<g/>\n");
}
