//! What servers are told of who a client is: a template for `application_name`.
//!
//! ```text
//! %a - %h:%p
//! ```

use std::{fmt, net::SocketAddr, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A template: `%a` is what the client calls itself (`app` if it does not), `%h` and `%p` its address and
/// port (`unix` and nothing for a unix socket), `%u` its user, `%d` its database, `%%` a percent sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplicationName(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Application,
    Host,
    Port,
    User,
    Database,
}

/// Most bytes that a server keeps of the name. Source: `NAMEDATALEN` in PostgreSQL.
const BYTES_MAX: usize = 63;

/// What a client is called that does not say.
const NAMELESS: &str = "app";

impl ApplicationName {
    /// What PgBouncer makes of it with `application_name_add_host`.
    pub(crate) const WITH_HOST: &'static str = "%a - %h:%p";

    /// The name for a client. If it would be too long, what the client calls itself is cut.
    pub(crate) fn of(
        &self,
        own: Option<&str>,
        from: Option<SocketAddr>,
        user: &str,
        database: &str,
    ) -> String {
        let own = own.filter(|own| !own.is_empty()).unwrap_or(NAMELESS);
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
                (Piece::Text(text), _) => name.push_str(text),
                (Piece::Application, _) => name.push_str(own),
                (Piece::Host, Some(from)) => name.push_str(&from.ip().to_canonical().to_string()),
                (Piece::Host, None) => name.push_str("unix"),
                (Piece::Port, Some(from)) => name.push_str(&from.port().to_string()),
                (Piece::Port, None) => {}
                (Piece::User, _) => name.push_str(user),
                (Piece::Database, _) => name.push_str(database),
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
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            if letter != '%' {
                plain.push(letter);
                continue;
            }
            let piece = match letters.next() {
                Some('%') => {
                    plain.push('%');
                    continue;
                }
                Some('a') => Piece::Application,
                Some('h') => Piece::Host,
                Some('p') => Piece::Port,
                Some('u') => Piece::User,
                Some('d') => Piece::Database,
                _ => return Err(format!("{text:?}: %a, %h, %p, %u, %d and %% are there")),
            };
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(piece);
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        if pieces.is_empty() { Err("the template is empty".to_owned()) } else { Ok(Self(pieces)) }
    }
}

impl fmt::Display for ApplicationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Text(text) => f.write_str(&text.replace('%', "%%")),
            Piece::Application => f.write_str("%a"),
            Piece::Host => f.write_str("%h"),
            Piece::Port => f.write_str("%p"),
            Piece::User => f.write_str("%u"),
            Piece::Database => f.write_str("%d"),
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
fn clients_are_told_apart_by_name() {
    let from = Some("10.0.0.7:4711".parse().unwrap());
    let name = |template: &str, own, from| {
        template.parse::<ApplicationName>().unwrap().of(own, from, "ann", "shop")
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
