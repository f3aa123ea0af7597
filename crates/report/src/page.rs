//! The frame of HTML pages: self-contained documents under a strict content security policy.
//!
//! A page loads nothing. Its policy allows only the styles and scripts that the page was built
//! with, by their hashes, so markup that gets into the page by mistake cannot run anything.

use std::fmt::Write as _;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use ring::digest::{SHA256, digest};
use serde::Serialize;

use crate::chart::escaped;

/// Colours and typography that all pages share.
pub(crate) const BASE_STYLE: &str = include_str!("page/base.css");

/// The parts of a page.
#[derive(Debug, Default)]
pub(crate) struct HtmlPage<'a> {
    /// The title, as plain text.
    pub(crate) title: &'a str,
    /// Style sheets after [`BASE_STYLE`].
    pub(crate) styles: &'a [&'a str],
    /// The content of `style` elements within the body, which the policy must allow as well.
    pub(crate) inner_styles: &'a [&'a str],
    /// The content of the `body` element, as HTML.
    pub(crate) body: &'a str,
    /// Data for the scripts, as JSON from [`embedded_json`].
    pub(crate) data: Option<&'a str>,
    /// Scripts, which run in this order after the page is loaded.
    pub(crate) scripts: &'a [&'a str],
}

impl HtmlPage<'_> {
    /// Renders the whole page.
    pub(crate) fn render(&self) -> String {
        let mut html = String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n");
        html.push_str("<meta charset=\"utf-8\">\n");
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            html,
            "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">",
            self.policy()
        );
        html.push_str(
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta name=\"referrer\" content=\"no-referrer\">\n",
        );
        let _ = writeln!(html, "<title>{}</title>", escaped(self.title));
        for style in self.outer_styles() {
            let _ = writeln!(html, "<style>{style}</style>");
        }
        let _ = writeln!(html, "</head>\n<body>\n{}", self.body.trim_end());
        if let Some(data) = self.data {
            let _ = writeln!(html, "<script type=\"application/json\" id=\"data\">{data}</script>");
        }
        for script in self.scripts {
            let _ = writeln!(html, "<script>{script}</script>");
        }
        html.push_str("</body>\n</html>\n");
        html
    }

    fn outer_styles(&self) -> impl Iterator<Item = &str> {
        [BASE_STYLE].into_iter().chain(self.styles.iter().copied())
    }

    /// Returns the content security policy. Data blocks need no entry because they are not
    /// executed.
    fn policy(&self) -> String {
        let styles = self.outer_styles().chain(self.inner_styles.iter().copied());
        let mut policy = format!("default-src 'none'; style-src{}", sources(styles));
        if !self.scripts.is_empty() {
            let _ = write!(policy, "; script-src{}", sources(self.scripts.iter().copied()));
        }
        policy.push_str("; base-uri 'none'; form-action 'none'");
        policy
    }
}

/// Returns ` 'sha256-…'` for each text.
fn sources<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let hash = |text: &str| BASE64_STANDARD.encode(digest(&SHA256, text.as_bytes()));
    texts.map(|text| format!(" 'sha256-{}'", hash(text))).collect()
}

/// Serializes a value as JSON that is safe in a `script` element.
///
/// Escapes `<`, `>` and `&`, so that no text can end the element or open a comment, and the two
/// characters that are line ends in JavaScript but not in JSON.
pub(crate) fn embedded_json(value: &impl Serialize) -> String {
    // Outside of strings, JSON does not use these characters.
    serde_json::to_string(value)
        .expect("the page's own types have string keys and no failing serializers")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_allows_only_own_styles_and_scripts() {
        let page = HtmlPage { title: "a<b", scripts: &["let a = 1;"], ..HtmlPage::default() };
        let html = page.render();
        // printf %s 'let a = 1;' | openssl dgst -sha256 -binary | base64
        assert!(
            html.contains("script-src 'sha256-xY6QKfH9PRsQnLz56nj6MBwiK5oHg+im1Jkpdp1x/Ck=';"),
            "{html}"
        );
        assert!(html.contains("default-src 'none'; style-src 'sha256-"));
        assert!(html.contains("<title>a&lt;b</title>"));
        assert!(!HtmlPage::default().render().contains("script-src"));
    }

    #[test]
    fn embedded_json_cannot_end_its_element() {
        let hostile = "</script><script>alert(1)</script><!-- & \u{2028}\u{2029}";
        let json = embedded_json(&hostile);
        for character in ['<', '>', '&', '\u{2028}', '\u{2029}'] {
            assert!(!json.contains(character), "{json}");
        }
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), hostile);
    }

    /// HTML parsers normalise line ends and end elements at their end tags, which would change the
    /// hashed text.
    #[test]
    fn base_style_is_unchanged_by_html_parsers() {
        assert!(!BASE_STYLE.contains('\r') && !BASE_STYLE.contains("</"));
    }
}
