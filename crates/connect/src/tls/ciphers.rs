//! [`CipherLists`]: which cipher suites may be negotiated, in OpenSSL's notation.

use rustls::{
    CipherSuite, SupportedCipherSuite,
    crypto::{CryptoProvider, ring::default_provider},
};

/// The cipher suites of TLS 1.2 and TLS 1.3, as lists of names in OpenSSL's notation.
///
/// A list that is empty or has an entry other than a name, such as `default` or `HIGH`, allows all
/// suites of its version: there are no weak ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CipherLists {
    /// Suites of TLS 1.2, such as `ECDHE-RSA-AES256-GCM-SHA384`.
    pub tls12: String,
    /// Suites of TLS 1.3, such as `TLS_AES_256_GCM_SHA384`.
    pub tls13: String,
}

/// OpenSSL's names of all supported suites.
const NAMES: [(&str, CipherSuite); 9] = [
    ("TLS_AES_256_GCM_SHA384", CipherSuite::TLS13_AES_256_GCM_SHA384),
    ("TLS_AES_128_GCM_SHA256", CipherSuite::TLS13_AES_128_GCM_SHA256),
    ("TLS_CHACHA20_POLY1305_SHA256", CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Returns OpenSSL's name of a suite; rustls' name if it is not supported.
pub fn cipher_name(suite: CipherSuite) -> String {
    let known = NAMES.iter().find(|(_, it)| *it == suite);
    known.map_or_else(|| format!("{suite:?}"), |(name, _)| (*name).to_owned())
}

impl CipherLists {
    /// Returns the entries that have no effect: suites that are not supported, and keywords.
    pub fn unsupported(&self) -> impl Iterator<Item = &str> {
        // The keyword of PgBouncer's and OpenSSL's default lists.
        let is_default = |name: &&str| name.eq_ignore_ascii_case("default");
        let all = entries(&self.tls12).chain(entries(&self.tls13));
        all.filter(move |name| !is_default(name) && find(name).is_none())
    }

    /// Returns the cryptography with the suites that the lists allow.
    pub fn provider(&self) -> CryptoProvider {
        let mut provider = default_provider();
        let lists = [&self.tls12, &self.tls13].map(|list| allowed(list));
        let [tls12, tls13] = &lists;
        provider.cipher_suites.retain(|suite| {
            let list = if matches!(suite, SupportedCipherSuite::Tls13(_)) { tls13 } else { tls12 };
            list.as_ref().is_none_or(|list| list.contains(&suite.suite()))
        });
        provider
    }
}

/// Splits a list into its entries.
fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.split([':', ',', ' ']).filter(|entry| !entry.is_empty())
}

fn find(name: &str) -> Option<CipherSuite> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, suite)| *suite)
}

/// Returns the suites of a list that consists of names; `None` if it is empty or has keywords.
fn allowed(list: &str) -> Option<Vec<CipherSuite>> {
    // Names of suites have at least two separators; keywords and their combinations do not.
    let is_name = |entry: &str| {
        entry.chars().filter(|char| matches!(char, '-' | '_')).count() > 1
            && entry.chars().all(|char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_'))
    };
    let mut names = entries(list).peekable();
    names.peek()?;
    names
        .map(|entry| is_name(entry).then(|| find(entry)))
        .collect::<Option<Vec<_>>>()
        .map(|suites| suites.into_iter().flatten().collect())
}

#[test]
fn names_select_suites_and_keywords_allow_all() {
    let suites = |tls12: &str, tls13: &str| -> Vec<String> {
        let lists = CipherLists { tls12: tls12.to_owned(), tls13: tls13.to_owned() };
        let provider = lists.provider();
        provider.cipher_suites.iter().map(|suite| cipher_name(suite.suite())).collect()
    };
    assert_eq!(suites("", "").len(), NAMES.len());
    for keywords in ["default", "HIGH:!aNULL", "HIGH:ECDHE-RSA-AES256-GCM-SHA384"] {
        assert_eq!(suites(keywords, "").len(), NAMES.len(), "{keywords}");
    }
    let one = suites("ECDHE-RSA-AES256-GCM-SHA384:AES128-GCM-SHA256", "TLS_AES_256_GCM_SHA384");
    assert_eq!(one, ["TLS_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"]);
    // Without any supported suite, TLS 1.2 is off.
    assert_eq!(suites("AES128-GCM-SHA256", "").len(), 3);
}

#[test]
fn entries_without_effect_are_reported() {
    let unsupported = |tls12: &str, tls13: &str| -> Vec<String> {
        let lists = CipherLists { tls12: tls12.to_owned(), tls13: tls13.to_owned() };
        lists.unsupported().map(str::to_owned).collect()
    };
    assert_eq!(unsupported("default", ""), [""; 0]);
    assert_eq!(unsupported("ECDHE-RSA-AES256-GCM-SHA384", "TLS_AES_256_GCM_SHA384"), [""; 0]);
    assert_eq!(
        unsupported("HIGH:!aNULL:AES128-SHA", "nonsense"),
        ["HIGH", "!aNULL", "AES128-SHA", "nonsense"]
    );
}
