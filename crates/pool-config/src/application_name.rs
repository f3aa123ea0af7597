//! [`ApplicationName`]: the template for the `application_name` that servers see.
//!
//! ```text
//! %a - %h:%p
//! ```

use std::{fmt, net::SocketAddr, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A template for the `application_name` that servers see. `%a` is the client's own
/// `application_name` (`app` if it has none), `%h` and `%p` are its address and port (`unix` and
/// empty for a unix socket), `%u` its user, `%d` its database, `%%` a percent sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplicationName(Vec<TemplatePart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Application,
    Host,
    Port,
    User,
    Database,
}

/// Maximum length of the name at a server, in bytes. Source: `NAMEDATALEN` in PostgreSQL.
const BYTES_MAX: usize = 63;

/// The value of `%a` for a client without an `application_name`.
const UNNAMED: &str = "app";

impl ApplicationName {
    /// The template equivalent to PgBouncer's `application_name_add_host`.
    pub(crate) const WITH_HOST: &'static str = "%a - %h:%p";

    /// Returns the name for a client. If it would be too long, the client's own name is truncated.
    pub fn for_client(
        &self,
        own: Option<&str>,
        from: Option<SocketAddr>,
        user: &str,
        database: &str,
    ) -> String {
        let own = own.filter(|own| !own.is_empty()).unwrap_or(UNNAMED);
        let whole = self.fill(own, from, user, database);
        let excess = whole.len().saturating_sub(BYTES_MAX);
        match own.len().checked_sub(excess) {
            _ if excess == 0 => whole,
            Some(room) => self.fill(&own[..own.floor_char_boundary(room)], from, user, database),
            None => self.fill("", from, user, database),
        }
    }

    fn fill(&self, own: &str, from: Option<SocketAddr>, user: &str, database: &str) -> String {
        let mut name = String::new();
        for piece in &self.0 {
            match (piece, from) {
                (TemplatePart::Text(text), _) => name.push_str(text),
                (TemplatePart::Application, _) => name.push_str(own),
                (TemplatePart::Host, Some(from)) => {
                    name.push_str(&from.ip().to_canonical().to_string());
                }
                (TemplatePart::Host, None) => name.push_str("unix"),
                (TemplatePart::Port, Some(from)) => name.push_str(&from.port().to_string()),
                (TemplatePart::Port, None) => {}
                (TemplatePart::User, _) => name.push_str(user),
                (TemplatePart::Database, _) => name.push_str(database),
            }
        }
        name
    }
}

impl FromStr for ApplicationName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            if char != '%' {
                plain.push(char);
                continue;
            }
            let piece = match chars.next() {
                Some('%') => {
                    plain.push('%');
                    continue;
                }
                Some('a') => TemplatePart::Application,
                Some('h') => TemplatePart::Host,
                Some('p') => TemplatePart::Port,
                Some('u') => TemplatePart::User,
                Some('d') => TemplatePart::Database,
                _ => {
                    return Err(format!(
                        "{text:?}: unknown placeholder; use %a, %h, %p, %u, %d or %%"
                    ));
                }
            };
            if !plain.is_empty() {
                pieces.push(TemplatePart::Text(std::mem::take(&mut plain)));
            }
            pieces.push(piece);
        }
        if !plain.is_empty() {
            pieces.push(TemplatePart::Text(plain));
        }
        if pieces.is_empty() { Err("the template is empty".to_owned()) } else { Ok(Self(pieces)) }
    }
}

impl fmt::Display for ApplicationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            TemplatePart::Text(text) => f.write_str(&text.replace('%', "%%")),
            TemplatePart::Application => f.write_str("%a"),
            TemplatePart::Host => f.write_str("%h"),
            TemplatePart::Port => f.write_str("%p"),
            TemplatePart::User => f.write_str("%u"),
            TemplatePart::Database => f.write_str("%d"),
        })
    }
}

impl<'de> Deserialize<'de> for ApplicationName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for ApplicationName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[test]
fn template_is_filled_for_client() {
    let from = Some("10.0.0.7:4711".parse().unwrap());
    let name = |template: &str, own, from| {
        template.parse::<ApplicationName>().unwrap().for_client(own, from, "ann", "shop")
    };
    assert_eq!(name("%a - %h:%p", Some("psql"), from), "psql - 10.0.0.7:4711");
    assert_eq!(name("%a - %h:%p", None, None), "app - unix:");
    assert_eq!(name("%u@%d: 100%%", None, from), "ann@shop: 100%");
    let long = "ä".repeat(60);
    let cut = name("%a - %h:%p", Some(&long), from);
    assert!(cut.len() <= 63 && cut.ends_with("ä - 10.0.0.7:4711"), "{cut}");
    for text in ["%a - %h:%p", "%u@%d: 100%%"] {
        assert_eq!(text.parse::<ApplicationName>().unwrap().to_string(), text);
    }
    assert!("%x".parse::<ApplicationName>().is_err() && "".parse::<ApplicationName>().is_err());
}
