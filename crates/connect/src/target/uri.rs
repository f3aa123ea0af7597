//! Writes a target as a URI, for messages and for parsing it again.

use std::path::Path;

use crate::{
    ConnectTarget, Endpoint, SessionAttributes, SslMode,
    target::{APPLICATION_NAME, LoadBalance},
    tls::{ChannelBindingMode, RootCertificates, SslNegotiation, TlsSettings, TlsVersion},
    uri::encode,
};

impl ConnectTarget {
    /// Returns the URI without the password. TLS files in a directory `.postgresql` are omitted,
    /// because they are usually the default ones. If the URI is parsed with the same home directory
    /// and without variables, the result is an equivalent target, except for omitted files that are
    /// not the default ones, the password, the password file, `require_auth`, keepalives, session
    /// parameters from the environment, and fractions of a second in the timeout.
    pub(super) fn to_uri(&self) -> String {
        let mut uri = format!("postgresql://{}@", encode(&self.user, b""));
        let mut parameters = UriParameters::default();
        // Paths are more readable without escapes.
        if self.endpoints.iter().any(|endpoint| matches!(endpoint, Endpoint::Unix { .. })) {
            parameters.add("host", &join(&self.endpoints, |endpoint| endpoint.host().into_owned()));
            parameters.add("port", &join(&self.endpoints, |endpoint| endpoint.port().to_string()));
        } else {
            uri += &join(&self.endpoints, netloc);
        }
        uri.push('/');
        uri += &encode(&self.database, b"");
        if self.endpoints.iter().any(|endpoint| !address(endpoint).is_empty()) {
            parameters.add("hostaddr", &join(&self.endpoints, address));
        }
        self.add_session(&mut parameters);
        add_tls(&self.tls, &mut parameters);
        uri + &parameters.0
    }

    fn add_session(&self, parameters: &mut UriParameters) {
        if self.application_name != APPLICATION_NAME {
            parameters.add("application_name", &self.application_name);
        }
        if let Some(options) = &self.options {
            parameters.add("options", options);
        }
        if let Some(encoding) = &self.client_encoding {
            parameters.add("client_encoding", encoding);
        }
        if let Some(timeout) = self.connect_timeout {
            parameters.add("connect_timeout", &timeout.as_secs().to_string());
        }
        if self.session_attributes != SessionAttributes::Any {
            parameters.add("target_session_attrs", self.session_attributes.as_str());
        }
        if self.balance != LoadBalance::Disable {
            parameters.add("load_balance_hosts", self.balance.as_str());
        }
    }
}

fn add_tls(tls: &TlsSettings, parameters: &mut UriParameters) {
    let root = match &tls.root_certificates {
        RootCertificates::System => Some(Path::new("system")),
        RootCertificates::File(path) => Some(path.as_path()),
        RootCertificates::None => None,
    };
    for (name, path) in [
        ("sslrootcert", root),
        ("sslcrl", tls.revocations.as_deref()),
        ("sslcrldir", tls.revocation_directory.as_deref()),
        ("sslcert", tls.certificate.as_deref()),
        ("sslkey", tls.key.as_deref()),
    ] {
        let usual =
            |path: &&Path| path.parent().is_some_and(|folder| folder.ends_with(".postgresql"));
        if let Some(path) = path.filter(|path| !usual(path)) {
            parameters.add(name, &path.to_string_lossy());
        }
    }
    let mut add = |given: bool, name, value| {
        if given {
            parameters.add(name, value);
        }
    };
    add(tls.is_certificate_disabled, "sslcertmode", "disable");
    add(tls.mode != SslMode::Prefer, "sslmode", tls.mode.as_str());
    let negotiation = tls.negotiation;
    add(negotiation != SslNegotiation::Postgres, "sslnegotiation", negotiation.as_str());
    add(!tls.sni, "sslsni", "0");
    let (min, max) = (tls.min_version, tls.max_version);
    add(min != TlsVersion::Tls12, "ssl_min_protocol_version", min.as_str());
    add(max != TlsVersion::Tls13, "ssl_max_protocol_version", max.as_str());
    let binding = tls.channel_binding;
    add(binding != ChannelBindingMode::Prefer, "channel_binding", binding.as_str());
}

fn join(endpoints: &[Endpoint], part: impl Fn(&Endpoint) -> String) -> String {
    endpoints.iter().map(part).collect::<Vec<_>>().join(",")
}

fn netloc(endpoint: &Endpoint) -> String {
    let (host, port) = (endpoint.host(), endpoint.port());
    if host.contains(':') {
        format!("[{}]:{port}", encode(&host, b":"))
    } else {
        format!("{}:{port}", encode(&host, b""))
    }
}

fn address(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Tcp { hostaddr: Some(address), .. } => address.to_string(),
        _ => String::new(),
    }
}

/// The query string of a URI, while it is written.
#[derive(Default)]
struct UriParameters(String);

impl UriParameters {
    fn add(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0 += name;
        self.0.push('=');
        self.0 += &encode(value, b"/,:@");
    }
}
