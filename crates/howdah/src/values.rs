//! Parsers of option values that several commands share, so that a notation means the same in all
//! of them.

use std::{fmt, net::SocketAddr, ops::RangeInclusive, path::PathBuf, str::FromStr, time::Duration};

use clap::builder::{OsStringValueParser, TypedValueParser};

use howdah_settings::{parse_duration, parse_size};

/// Parses a duration above zero: `500ms`, `90s`, `5m`, `2h`, `1d`, or a bare number of seconds.
///
/// # Errors
///
/// The text is not a valid duration; the error shows the expected notation.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    time_or_zero(text).ok().filter(|time| !time.is_zero()).ok_or_else(notation)
}

/// Like [`time`], but also accepts zero.
///
/// # Errors
///
/// See [`time`].
pub(crate) fn time_or_zero(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|_| notation())
}

fn notation() -> String {
    "write a time such as 500ms, 10s, 5m or 1h (a bare number is seconds)".to_owned()
}

/// Returns a parser of durations within a range in seconds; see [`time`].
pub(crate) fn time_in_range(
    seconds: RangeInclusive<f64>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let time = time(text)?;
        if seconds.contains(&time.as_secs_f64()) {
            return Ok(time);
        }
        Err(format!("write a time from {}s to {}s", seconds.start(), seconds.end()))
    }
}

/// Returns a parser of the path of a capture or run: a local path, which may be written as
/// `file://`, or the URL of an object store.
pub(crate) fn dataset_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|path| {
        let Some((scheme, rest)) = path.to_str().and_then(|path| path.split_once("://")) else {
            return Ok(PathBuf::from(path));
        };
        match scheme {
            "file" if rest.starts_with('/') => Ok(PathBuf::from(rest)),
            "file" => Err("write file:///PATH, with three slashes".to_owned()),
            "s3" | "gs" | "az" if cfg!(not(feature = "stores")) => {
                Err("this build does not support object stores (build with --features stores)"
                    .to_owned())
            }
            "s3" | "gs" | "az" if rest.trim_start_matches('/').is_empty() => {
                Err(format!("write {scheme}://BUCKET/PREFIX"))
            }
            // A slash at the end would be a part of the prefix.
            "s3" | "gs" | "az" => {
                Ok(PathBuf::from(format!("{scheme}://{}", rest.trim_end_matches('/'))))
            }
            _ if is_scheme(scheme) => {
                Err(format!("{scheme}:// is not supported: use s3://, gs://, az:// or file://"))
            }
            _ => Ok(PathBuf::from(path)),
        }
    })
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Parses an address to listen on: an IP address, or `localhost`, with a port.
///
/// # Errors
///
/// The text is not such an address.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let literal = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    literal
        .as_deref()
        .unwrap_or(text)
        .parse()
        .map_err(|_| "write an IP address and a port, such as 127.0.0.1:8080".to_owned())
}

/// Returns a parser of bytes per second, at most `max`: `500kB`, `64MB`, `1GB`, in powers of 1024.
/// A bare number is rejected, because it could be meant in megabytes.
pub(crate) fn data_rate(max: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| {
        let has_unit = text.ends_with('B');
        parse_size(text)
            .filter(|bytes| has_unit && (1..=max).contains(bytes))
            .ok_or_else(|| "write a size per second with its unit, such as 50MB".to_owned())
    }
}

/// Maximum of `--max-rate`: 1 TB per second.
pub(crate) const DATA_RATE_MAX: u64 = 1 << 40;

/// Parses a duration with a unit, or 0, for options whose values are usually below a second. Any
/// other bare number is rejected, because it could be meant in milliseconds.
///
/// # Errors
///
/// See [`time`].
pub(crate) fn short_time(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(number) if number != 0.0 => Err(format!("add a unit: {text}ms or {text}s")),
        _ => time_or_zero(text),
    }
}

/// Like [`short_time`], but rejects 0.
///
/// # Errors
///
/// See [`time`].
pub(crate) fn short_time_above_zero(text: &str) -> Result<Duration, String> {
    let found = short_time(text)?;
    let refused = || "write a time above 0, such as 500ms".to_owned();
    Some(found).filter(|time| !time.is_zero()).ok_or_else(refused)
}

/// An option value that must not appear in any output.
#[derive(Clone)]
pub(crate) struct SecretArg(pub(crate) String);

impl FromStr for SecretArg {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for SecretArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

#[test]
fn short_times_need_a_unit() {
    assert_eq!(time("1.5"), Ok(Duration::from_millis(1500)));
    assert_eq!(time("5m"), Ok(Duration::from_secs(300)));
    for text in ["", "0", "-1", "1y", "s", "1e400", "nan"] {
        assert!(time(text).is_err(), "{text}");
    }
    assert_eq!(short_time("0.5ms"), Ok(Duration::from_micros(500)));
    for text in ["0", "0.0", "0ms", "0s"] {
        assert_eq!(
            (short_time(text), time_or_zero(text)),
            (Ok(Duration::ZERO), Ok(Duration::ZERO))
        );
    }
    assert!(short_time_above_zero("0").is_err() && short_time_above_zero("0ms").is_err());
    assert_eq!(short_time("100"), Err("add a unit: 100ms or 100s".to_owned()));
}

#[test]
fn listen_addresses_are_literal() {
    for (text, address) in
        [("127.0.0.1:0", "127.0.0.1:0"), ("localhost:80", "127.0.0.1:80"), ("[::1]:9", "[::1]:9")]
    {
        assert_eq!(listen_address(text).map(|it| it.to_string()), Ok(address.to_owned()));
    }
    for text in ["", ":80", "127.0.0.1", "example.com:80", "127.0.0.1:65536", "localhost:"] {
        assert!(listen_address(text).is_err(), "{text}");
    }
}

#[test]
fn range_is_in_the_error_and_rates_need_a_unit() {
    assert_eq!(time_in_range(5.0..=600.0)("1m"), Ok(Duration::from_secs(60)));
    assert_eq!(time_in_range(5.0..=600.0)("1s"), Err("write a time from 5s to 600s".to_owned()));
    let rate = data_rate(DATA_RATE_MAX);
    assert_eq!(rate("50MB"), Ok(50 << 20));
    for text in ["50", "0B", "2000TB", "MB", "50 MB", "-1MB"] {
        assert!(rate(text).is_err(), "{text}");
    }
}
