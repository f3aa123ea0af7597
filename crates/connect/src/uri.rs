//! The URI form of a connection string.
//!
//! ```text
//! postgresql://[user[:password]@][host[:port]][,…][/dbname][?keyword=value[&…]]
//! ```
//!
//! Every part may be percent-encoded; a host that decodes to a path is a socket directory. Source:
//! PostgreSQL manual, "Connection URIs"; where it is silent, `conninfo_uri_parse_options` in
//! `fe-connect.c`.

use crate::{resolve_error::ResolveError, setting_origin::SettingOrigin, settings::KeywordValues};

/// Returns the text after the `postgresql://` of a URI; `None` if the text is not a URI.
///
/// # Errors
///
/// The URI has another scheme.
pub(crate) fn after_scheme(text: &str) -> Result<Option<&str>, ResolveError> {
    let of_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    match text.split_once("://") {
        Some(("postgresql" | "postgres", rest)) => Ok(Some(rest)),
        Some(("jdbc:postgresql", _)) => {
            Err(ResolveError::UnknownScheme { scheme: "jdbc:postgresql".to_owned() })
        }
        Some((scheme, _))
            if scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.bytes().all(of_scheme)
                && scheme.len() <= 32 =>
        {
            Err(ResolveError::UnknownScheme { scheme: scheme.to_owned() })
        }
        _ => Ok(None),
    }
}

/// Parses a URI without its scheme.
pub(crate) fn parse(text: &str) -> Result<KeywordValues, ResolveError> {
    let mut settings = KeywordValues::default();
    let rest = match split_credentials(text) {
        Some((user, password, rest)) => {
            store(&mut settings, "user", "user", user)?;
            store(&mut settings, "password", "password", password)?;
            rest
        }
        None => text,
    };
    let rest = parse_hosts(rest, &mut settings)?;
    let (path, parameters) = match rest.split_once('?') {
        Some((path, parameters)) => (path, parameters),
        None => (rest, ""),
    };
    if let Some(database) = path.strip_prefix('/') {
        store(&mut settings, "dbname", "database name", database)?;
    }
    parse_parameters(parameters, &mut settings)?;
    Ok(settings)
}

/// Splits off `user:password@`, if an `@` comes before any `/`.
fn split_credentials(text: &str) -> Option<(&str, &str, &str)> {
    let at = text.find(['@', '/']).filter(|at| text[*at..].starts_with('@'))?;
    let (credentials, rest) = (&text[..at], &text[at + 1..]);
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    Some((user, password, rest))
}

/// Parses `host:port,…` and returns the text after it: a path, parameters or nothing.
fn parse_hosts<'a>(text: &'a str, settings: &mut KeywordValues) -> Result<&'a str, ResolveError> {
    let (mut hosts, mut ports) = (String::new(), String::new());
    let mut rest = text;
    loop {
        let (host, after) = split_host(rest)?;
        let (port, after) = match after.strip_prefix(':') {
            Some(after) => split_before(after, &['/', '?', ',']),
            None => ("", after),
        };
        // With an extra `@`, or a `/` in the password, this text is part of the password.
        let port_like = port.is_empty() || port.parse().is_ok_and(|port: u16| port > 0);
        if host.contains('@') || port.contains('@') || (!port_like && after.contains('@')) {
            return Err(ResolveError::CredentialsNotEncoded);
        }
        hosts.push_str(host);
        ports.push_str(port);
        rest = after;
        let Some(next) = rest.strip_prefix(',') else { break };
        hosts.push(',');
        ports.push(',');
        rest = next;
    }
    store(settings, "host", "host", &hosts)?;
    store(settings, "port", "port", &ports)?;
    Ok(rest)
}

/// Splits off a host name, or an IPv6 address in brackets.
fn split_host(text: &str) -> Result<(&str, &str), ResolveError> {
    let Some(bracketed) = text.strip_prefix('[') else {
        return Ok(split_before(text, &[':', '/', '?', ',']));
    };
    let (address, rest) = bracketed.split_once(']').ok_or(ResolveError::BadBrackets)?;
    if address.is_empty() || !(rest.is_empty() || rest.starts_with([':', '/', '?', ','])) {
        return Err(ResolveError::BadBrackets);
    }
    Ok((address, rest))
}

fn split_before<'a>(text: &'a str, ends: &[char]) -> (&'a str, &'a str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

fn parse_parameters(text: &str, settings: &mut KeywordValues) -> Result<(), ResolveError> {
    let mut rest = text;
    let mut after_password = false;
    while !rest.is_empty() {
        let (pair, after) = rest.split_once('&').unwrap_or((rest, ""));
        let result = store_parameter(pair, settings);
        match result {
            // This may be the second half of a password with a `&` in it.
            Err(_) if after_password => return Err(ResolveError::PasswordNotQuoted),
            other => other?,
        }
        after_password |= pair.starts_with("password=") || pair.starts_with("sslpassword=");
        rest = after;
    }
    Ok(())
}

fn store_parameter(pair: &str, settings: &mut KeywordValues) -> Result<(), ResolveError> {
    let (keyword, value) = pair.split_once('=').ok_or(ResolveError::BadParameter)?;
    if value.contains('=') {
        return Err(ResolveError::BadParameter);
    }
    let keyword = decode("keyword", keyword)?;
    let value = decode("value of a parameter", value)?;
    match (keyword.as_str(), value.as_str()) {
        // JDBC's spelling of `sslmode=require`.
        ("ssl", "true") => settings.set("sslmode", "require", SettingOrigin::Argument),
        _ => settings.set(&keyword, value, SettingOrigin::Argument),
    }
}

/// Stores a part unless it is empty, so that the environment can set the keyword.
fn store(
    settings: &mut KeywordValues,
    keyword: &'static str,
    part: &'static str,
    text: &str,
) -> Result<(), ResolveError> {
    if text.is_empty() {
        return Ok(());
    }
    settings.set(keyword, decode(part, text)?, SettingOrigin::Argument)
}

/// Decodes percent-encoding. Surrounding spaces are dropped, as in libpq since PostgreSQL 18.
fn decode(part: &'static str, text: &str) -> Result<String, ResolveError> {
    let text = text.trim_matches(' ');
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
                match digit().zip(digit()) {
                    Some((0, 0)) | None => return Err(ResolveError::BadPercentEncoding { part }),
                    // Two digits of four bits each.
                    Some((high, low)) => bytes.push((high << 4 | low) as u8),
                }
            }
            byte if byte.is_ascii_whitespace() => {
                return Err(ResolveError::UnencodedSpace { part });
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| ResolveError::BadUtf8 { part })
}

/// Percent-encodes all but unreserved characters and the bytes of `plain`.
pub(crate) fn encode(text: &str, plain: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || plain.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests;
