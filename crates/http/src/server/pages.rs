//! Protection of pages that browsers on this machine read.
//!
//! Any web page that a browser shows can send requests to ports of its machine. Three checks keep
//! such pages out. The `Host` header must name this server: under DNS rebinding, a foreign host
//! name resolves to this machine, and only this header reveals it. An `Origin` header, which
//! browsers add to many requests from scripts, must also name this server. A request that another
//! site caused must be a navigation, that is, one whose result only the user sees.
//!
//! Requests other than GET and HEAD are refused, so nothing can be changed. A control server
//! accepts other methods, but no request from a browser at all.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{
    Router,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, uri::Authority},
    middleware::{Next, from_fn},
    response::{IntoResponse as _, Response},
};

/// Access rules of a page server. By default, the server listens on loopback addresses only, and a
/// request must name `localhost`, `127.0.0.1`, `::1` or the server's address, with its port.
#[derive(Clone, Debug, Default)]
pub struct PageAccess {
    /// Whether the server may listen on an address that other machines can reach. All clients that
    /// can connect can read the pages, without authentication. Requests may then name the server by
    /// any IP address.
    pub allow_remote: bool,
    /// Host names by which browsers may address the server, besides `localhost` and permitted IP
    /// addresses.
    pub host_names: Vec<String>,
}

/// The reason why a page server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageServerError {
    /// Other machines could connect, and [`PageAccess::allow_remote`] is not set.
    #[error("{0} is not a loopback address, so other machines could connect")]
    NotLoopback(SocketAddr),
    /// The address cannot be bound, or the server's thread cannot be started.
    #[error("cannot listen on {address}")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Refuses an address that other machines can reach, unless that is allowed.
pub(super) fn check_address(
    address: SocketAddr,
    access: &PageAccess,
) -> Result<(), PageServerError> {
    if access.allow_remote || address.ip().to_canonical().is_loopback() {
        Ok(())
    } else {
        Err(PageServerError::NotLoopback(address))
    }
}

/// Adds the checks and the security headers to a router. `address` is the address that the server
/// listens on.
pub(super) fn protected(router: Router, address: SocketAddr, access: &PageAccess) -> Router {
    let hosts = Arc::new(AllowedHosts { address, access: access.clone() });
    router.layer(from_fn(move |request: Request, next: Next| {
        let hosts = Arc::clone(&hosts);
        async move {
            let mut response = match hosts.check(&request) {
                Ok(()) => next.run(request).await,
                Err(refusal) => refusal.response(address),
            };
            add_security_headers(response.headers_mut());
            response
        }
    }))
}

/// Restricts a router to programs on this machine: requests must name this server, and must not
/// come from a browser. `address` is the loopback address that the server listens on.
pub(super) fn controlled(router: Router, address: SocketAddr) -> Router {
    let hosts = Arc::new(AllowedHosts { address, access: PageAccess::default() });
    router.layer(from_fn(move |request: Request, next: Next| {
        let hosts = Arc::clone(&hosts);
        async move {
            match hosts.check_program(&request) {
                Ok(()) => next.run(request).await,
                Err(refusal) => refusal.response(address),
            }
        }
    }))
}

/// Restricts a router to programs that read. Requests must name a loopback address, unless clients
/// are authenticated; its port is that of a tunnel, if there is one.
pub(super) fn for_readers(router: Router, is_authenticated: bool) -> Router {
    router.layer(from_fn(move |request: Request, next: Next| async move {
        match check_reader(&request, is_authenticated) {
            Ok(()) => next.run(request).await,
            Err(PageRefusal::Host) => {
                (StatusCode::FORBIDDEN, "requests must name a loopback address\n").into_response()
            }
            Err(refusal) => refusal.response(SocketAddr::from(([127, 0, 0, 1], 0))),
        }
    }))
}

fn check_reader(request: &Request, is_authenticated: bool) -> Result<(), PageRefusal> {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return Err(PageRefusal::Method);
    }
    if !is_authenticated {
        let host = only_value(request.headers(), header::HOST).ok_or(PageRefusal::Host)?;
        let target = request.uri().authority().map(Authority::as_str);
        if ![Some(host), target].into_iter().flatten().all(is_loopback_host) {
            return Err(PageRefusal::Host);
        }
    }
    if is_from_browser(request) { Err(PageRefusal::Browser) } else { Ok(()) }
}

/// Whether a host as in the `Host` header is `localhost` or a loopback address, with any port.
fn is_loopback_host(host: &str) -> bool {
    let (name, port) = split_port(host);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_loopback = address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    port.is_some() && (is_loopback || name.eq_ignore_ascii_case("localhost"))
}

/// Whether a browser sent the request. Browsers add `Sec-Fetch-Site` to all requests to this
/// machine, and `Origin` to those that change something.
fn is_from_browser(request: &Request) -> bool {
    let headers = ["origin", "sec-fetch-site", "sec-fetch-mode"];
    headers.iter().any(|name| request.headers().contains_key(*name))
}

/// The hosts that requests may name.
#[derive(Debug)]
struct AllowedHosts {
    address: SocketAddr,
    access: PageAccess,
}

/// The reason why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageRefusal {
    Method,
    Host,
    Origin,
    CrossSite,
    Browser,
}

impl PageRefusal {
    fn response(self, address: SocketAddr) -> Response {
        match self {
            Self::Method => (
                StatusCode::METHOD_NOT_ALLOWED,
                [(header::ALLOW, "GET, HEAD")],
                "only GET and HEAD are served\n",
            )
                .into_response(),
            Self::Host => {
                let text = format!("this server is only served as http://{address}/\n");
                (StatusCode::FORBIDDEN, text).into_response()
            }
            Self::Origin => {
                (StatusCode::FORBIDDEN, "requests from other origins are refused\n").into_response()
            }
            Self::CrossSite => {
                (StatusCode::FORBIDDEN, "requests from other sites are refused\n").into_response()
            }
            Self::Browser => {
                (StatusCode::FORBIDDEN, "requests from browsers are refused\n").into_response()
            }
        }
    }
}

impl AllowedHosts {
    fn check(&self, request: &Request) -> Result<(), PageRefusal> {
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            return Err(PageRefusal::Method);
        }
        self.check_host(request)?;
        let headers = request.headers();
        if headers.contains_key(header::ORIGIN) {
            let origin = only_value(headers, header::ORIGIN).ok_or(PageRefusal::Origin)?;
            let host = origin.strip_prefix("http://").ok_or(PageRefusal::Origin)?;
            if !self.contains(host) {
                return Err(PageRefusal::Origin);
            }
        }
        let value = |name: &'static str| headers.get(name).and_then(|value| value.to_str().ok());
        let is_cross_site = matches!(value("sec-fetch-site"), Some(site) if !["same-origin", "none"].contains(&site));
        let is_navigation = value("sec-fetch-mode") == Some("navigate")
            && value("sec-fetch-dest") == Some("document");
        if is_cross_site && !is_navigation { Err(PageRefusal::CrossSite) } else { Ok(()) }
    }

    /// Checks a request that may change something.
    fn check_program(&self, request: &Request) -> Result<(), PageRefusal> {
        self.check_host(request)?;
        if is_from_browser(request) { Err(PageRefusal::Browser) } else { Ok(()) }
    }

    fn check_host(&self, request: &Request) -> Result<(), PageRefusal> {
        let host = only_value(request.headers(), header::HOST).ok_or(PageRefusal::Host)?;
        // A request target in absolute form has a host as well.
        let target = request.uri().authority().map(Authority::as_str);
        let names_this = [Some(host), target].into_iter().flatten().all(|host| self.contains(host));
        if names_this { Ok(()) } else { Err(PageRefusal::Host) }
    }

    /// Whether `host`, as in the `Host` header, is this server.
    fn contains(&self, host: &str) -> bool {
        let (name, port) = split_port(host);
        if port != Some(self.address.port()) {
            return false;
        }
        // An address in a URL cannot be rebound, so with remote clients any address is harmless.
        let ip = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match ip {
            Ok(ip) => {
                let is_bracketed = name.starts_with('[') && name.ends_with(']');
                is_bracketed == ip.is_ipv6()
                    && (self.access.allow_remote
                        || ip == self.address.ip()
                        || ["127.0.0.1", "::1"].contains(&ip.to_string().as_str()))
            }
            Err(_) => {
                let names = self.access.host_names.iter().map(String::as_str);
                names.chain(["localhost"]).any(|known| known.eq_ignore_ascii_case(name))
            }
        }
    }
}

/// Splits `name[:port]`. The default port is 80; an invalid port is `None`.
fn split_port(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => {
            let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            (name, if is_number { port.parse().ok() } else { None })
        }
        _ => (host, Some(80)),
    }
}

/// Returns the value of a header that occurs exactly once; otherwise `None`.
fn only_value(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Adds the security headers that the response does not set itself.
fn add_security_headers(headers: &mut HeaderMap) {
    const HEADERS: [(HeaderName, &str); 7] = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Reports are as confidential as the database.
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn hosts(address: &str) -> AllowedHosts {
        let address = address.parse().unwrap();
        AllowedHosts { address, access: PageAccess::default() }
    }

    #[test]
    fn only_programs_control() {
        let hosts = hosts("127.0.0.1:8080");
        let check = |headers: &[(&str, &str)]| {
            let mut request = Request::builder().uri("/rate").method(Method::PUT);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            hosts.check_program(&request.body(Body::empty()).unwrap())
        };
        let host = ("host", "127.0.0.1:8080");
        assert_eq!(check(&[host]), Ok(()));
        assert_eq!(check(&[("host", "evil.example:8080")]), Err(PageRefusal::Host));
        for header in [("origin", "http://127.0.0.1:8080"), ("sec-fetch-site", "same-origin")] {
            assert_eq!(check(&[host, header]), Err(PageRefusal::Browser));
        }
    }

    fn check(hosts: &AllowedHosts, headers: &[(&str, &str)]) -> Result<(), PageRefusal> {
        let mut request = Request::builder().uri("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        hosts.check(&request.body(Body::empty()).unwrap())
    }

    #[test]
    fn only_own_hosts_are_allowed() {
        let hosts = hosts("127.0.0.1:8080");
        for host in ["127.0.0.1:8080", "localhost:8080", "LocalHost:8080", "[::1]:8080"] {
            assert_eq!(check(&hosts, &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "",
            "127.0.0.1",
            "localhost",
            "localhost:80",
            "localhost:08080x",
            "localhost:",
            ":8080",
            "evil.example:8080",
            "localhost.evil.example:8080",
            "127.0.0.1.nip.io:8080",
            "localhost.:8080",
            "10.0.0.1:8080",
            "[::1]",
            "::1:8080",
            "[127.0.0.1]:8080",
            "user@localhost:8080",
            "[::1]:8080:8080",
            "127.0.0.2:8080",
            "localhost:8080/",
        ] {
            assert_eq!(check(&hosts, &[("host", host)]), Err(PageRefusal::Host), "{host}");
        }
        let twice = [("host", "localhost:8080"), ("host", "evil.example:8080")];
        assert_eq!(check(&hosts, &twice), Err(PageRefusal::Host));
        assert_eq!(check(&hosts, &[]), Err(PageRefusal::Host));
    }

    #[test]
    fn port_80_may_be_left_out() {
        let hosts = hosts("[::1]:80");
        for host in ["localhost", "[::1]", "127.0.0.1:80"] {
            assert_eq!(check(&hosts, &[("host", host)]), Ok(()), "{host}");
        }
        assert_eq!(check(&hosts, &[("host", "localhost:8080")]), Err(PageRefusal::Host));
    }

    #[test]
    fn absolute_target_must_name_this_server() {
        let hosts = hosts("127.0.0.1:8080");
        let request = Request::builder()
            .uri("http://evil.example:8080/")
            .header("host", "localhost:8080")
            .body(Body::empty())
            .unwrap();
        assert_eq!(hosts.check(&request), Err(PageRefusal::Host));
    }

    #[test]
    fn other_origins_and_sites_are_refused() {
        let hosts = hosts("127.0.0.1:8080");
        let host = ("host", "127.0.0.1:8080");
        for origin in ["http://127.0.0.1:8080", "http://localhost:8080"] {
            assert_eq!(check(&hosts, &[host, ("origin", origin)]), Ok(()), "{origin}");
        }
        for origin in
            ["null", "", "https://localhost:8080", "http://localhost:8081", "http://evil.example"]
        {
            let result = check(&hosts, &[host, ("origin", origin)]);
            assert_eq!(result, Err(PageRefusal::Origin), "{origin}");
        }
        let from = |site, mode, dest| {
            check(
                &hosts,
                &[
                    host,
                    ("sec-fetch-site", site),
                    ("sec-fetch-mode", mode),
                    ("sec-fetch-dest", dest),
                ],
            )
        };
        assert_eq!(from("same-origin", "cors", "empty"), Ok(()));
        assert_eq!(from("none", "navigate", "document"), Ok(()));
        assert_eq!(from("cross-site", "navigate", "document"), Ok(()));
        for (mode, dest) in [("no-cors", "script"), ("no-cors", "image"), ("navigate", "iframe")] {
            assert_eq!(from("cross-site", mode, dest), Err(PageRefusal::CrossSite), "{dest}");
            assert_eq!(from("same-site", mode, dest), Err(PageRefusal::CrossSite), "{dest}");
        }
    }

    #[test]
    fn remote_access_allows_addresses_but_only_known_names() {
        let mut hosts = hosts("0.0.0.0:8080");
        hosts.access =
            PageAccess { allow_remote: true, host_names: vec!["reports.example".to_owned()] };
        for host in ["192.168.1.5:8080", "reports.example:8080", "[2001:db8::1]:8080"] {
            assert_eq!(check(&hosts, &[("host", host)]), Ok(()), "{host}");
        }
        assert_eq!(check(&hosts, &[("host", "evil.example:8080")]), Err(PageRefusal::Host));
    }

    #[test]
    fn address_that_others_can_reach_is_refused() {
        let local = PageAccess::default();
        for address in ["127.0.0.1:0", "[::1]:0", "127.9.9.9:80", "[::ffff:127.0.0.1]:0"] {
            assert!(check_address(address.parse().unwrap(), &local).is_ok(), "{address}");
        }
        let remote = PageAccess { allow_remote: true, ..PageAccess::default() };
        for address in ["0.0.0.0:0", "[::]:80", "10.0.0.1:80", "[::ffff:10.0.0.1]:0"] {
            let address = address.parse().unwrap();
            assert!(check_address(address, &local).is_err(), "{address}");
            assert!(check_address(address, &remote).is_ok(), "{address}");
        }
    }

    #[test]
    fn readers_name_a_loopback_address() {
        let check = |headers: &[(&str, &str)], method, is_authenticated| {
            let mut request = Request::builder().uri("/processes").method(method);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            check_reader(&request.body(Body::empty()).unwrap(), is_authenticated)
        };
        for host in ["127.0.0.1:9000", "localhost", "LOCALHOST:1", "[::1]:80", "127.0.0.2"] {
            assert_eq!(check(&[("host", host)], Method::GET, false), Ok(()), "{host}");
        }
        for host in ["evil.example:9000", "10.0.0.1", "localhost.evil.example", "127.0.0.1:x", ""] {
            let found = check(&[("host", host)], Method::GET, false);
            assert_eq!(found, Err(PageRefusal::Host), "{host}");
            assert_eq!(check(&[("host", host)], Method::GET, true), Ok(()), "{host}");
        }
        assert_eq!(check(&[], Method::GET, false), Err(PageRefusal::Host));
        let host = ("host", "localhost");
        assert_eq!(check(&[host], Method::POST, true), Err(PageRefusal::Method));
        let browser = [host, ("sec-fetch-site", "none")];
        assert_eq!(check(&browser, Method::GET, true), Err(PageRefusal::Browser));
    }
}
