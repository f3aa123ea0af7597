//! The frame of HTML pages: self-contained documents under a strict content security policy.
//!
//! A page loads nothing, but the scripts of a live page request data from its server. Its policy
//! allows only the styles and scripts that the page was built with, by their hashes, so markup that
//! gets into the page by mistake cannot run anything.

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
    /// Scripts at the end of the body, which run in this order.
    pub(crate) scripts: &'a [&'a str],
    /// Whether scripts may send requests to the server of the page.
    pub(crate) is_live: bool,
}

/// A page for a web server.
#[derive(Clone, Debug)]
pub struct WebPage {
    /// The whole page.
    pub html: String,
    /// The page's content security policy, for the header of the response. `html` contains the same
    /// policy.
    pub policy: String,
}

/// Returns the content security policy that a page made by this crate contains, for the header of a
/// response; `None` if the page has none, or one that allows more than styles and scripts by their
/// hashes.
pub fn hashed_policy(html: &[u8]) -> Option<&str> {
    const START: &[u8] = b"<meta http-equiv=\"Content-Security-Policy\" content=\"";
    let head = html.get(..html.len().min(POLICY_END_MAX))?;
    let start = head.windows(START.len()).position(|window| window == START)? + START.len();
    let length = head[start..].iter().position(|byte| *byte == b'"')?;
    let policy = std::str::from_utf8(&head[start..start + length]).ok()?;
    let is_hash = |source: &str| {
        let hash = source.strip_prefix("'sha256-").and_then(|rest| rest.strip_suffix('\''));
        let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
        hash.is_some_and(|hash| hash.bytes().all(is_base64))
    };
    let is_strict = policy.split("; ").all(|directive| match directive.split_once(' ') {
        Some(("style-src" | "script-src", sources)) => sources.split(' ').all(is_hash),
        Some(("default-src" | "base-uri" | "form-action", source)) => source == "'none'",
        _ => false,
    });
    (is_strict && policy.starts_with("default-src 'none'; ")).then_some(policy)
}

/// Maximum position of the policy in a page: it is at the start, before styles.
const POLICY_END_MAX: usize = 8_192;

impl HtmlPage<'_> {
    /// Renders the whole page for a web server.
    pub(crate) fn render_for_web(&self) -> WebPage {
        WebPage { html: self.render(), policy: self.policy() }
    }

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
        if self.is_live {
            policy.push_str("; connect-src 'self'");
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
    fn policy_of_own_pages_is_found_and_weaker_ones_are_not() {
        let page = HtmlPage { scripts: &["let a = 1;"], ..HtmlPage::default() };
        let html = page.render();
        assert_eq!(hashed_policy(html.as_bytes()), Some(page.policy().as_str()));
        for (from, to) in [
            ("script-src 'sha256-", "script-src 'unsafe-inline' 'sha256-"),
            ("script-src 'sha256-", "script-src https://evil.example 'sha256-"),
            ("default-src 'none'", "default-src *"),
            ("default-src 'none'; ", ""),
            ("form-action 'none'", "form-action *"),
            ("base-uri 'none'", "img-src *"),
            ("base-uri 'none'", "base-uri 'none'\r\nx: y"),
            ("Content-Security-Policy", "refresh"),
        ] {
            assert!(html.contains(from), "{from}");
            assert_eq!(hashed_policy(html.replacen(from, to, 1).as_bytes()), None, "{to}");
        }
        for bytes in [&b""[..], b"\xff", b"<meta http-equiv=\"Content-Security-Policy\" content=\""]
        {
            assert_eq!(hashed_policy(bytes), None);
        }
        let live = HtmlPage { is_live: true, ..HtmlPage::default() }.render_for_web();
        assert!(live.policy.contains("; connect-src 'self'; "), "{}", live.policy);
        assert_eq!(hashed_policy(live.html.as_bytes()), None);
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
