//! The certificates were created by `openssl req -x509` (version 1: `openssl x509 -req`), and each
//! is named after its signature algorithm. The hashes were computed by coreutils.

use super::*;

macro_rules! certificate {
    ($name:literal) => {
        include_bytes!(concat!("../../../tests/certificates/", $name, ".der"))
    };
}

fn hash(certificate: &[u8]) -> Option<String> {
    let hash = end_point_hash(certificate)?;
    Some(hash.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[test]
fn hash_is_that_of_signature_but_never_broken() {
    let table: &[(&[u8], &str)] = &[
        (
            certificate!("ec-sha256"),
            "41a9ddc2d7a5e08593d47f040dba9195a615c858edd6dff6a9a1eaa5297ed9d1",
        ),
        (
            certificate!("ec-sha1"),
            "b68dc1526802ca6dcb8eed1ce21bde853de7696edea9c8b213b3148448fb39f5",
        ),
        (
            certificate!("rsa-sha256"),
            "9feaf8e5fe4dce0b3a7000d1ce2ab188f2925fe35d9146e581005d04a5bd9e97",
        ),
        (
            certificate!("rsa-md5"),
            "cbf040d4420d597f831716ac034e1ffd9629399c68c5b46f492179fcc8ca8cbb",
        ),
        (
            certificate!("ec-sha384"),
            "86636ae12de3ea7aeac7d95242a0498b1767bbca18d2f691598ac1f51654cbf1\
             00c37614666b8747527c3874da22bb9f",
        ),
        (
            certificate!("rsa-pss-sha384"),
            "c913ef683cf1dd35d9344385ddddff105377c3c2bdf073c043bb2418c76f4396\
             ee5c57ae922536e2f8ffd66e9cabc4ca",
        ),
        (
            certificate!("ec-sha512"),
            "db22fb1fb88e01236637f7772da9f034fb015fecb4817af43da34d26e1fd482e\
             e158dde19c8001adec539642a5f0a2d80854a4cdddfd6384ad9136d245270db5",
        ),
    ];
    for (certificate, expected) in table {
        assert_eq!(hash(certificate).as_deref(), Some(*expected));
    }
    // Ed25519 has no separate hash function, and PostgreSQL's server does not support it either.
    assert_eq!(hash(certificate!("ed25519")), None);
}

#[test]
fn fields_are_parsed() {
    let both = Certificate::parse(certificate!("ec-sha256")).unwrap();
    assert_eq!(both.version, 3);
    assert_eq!(both.issuer, both.subject);
    assert_eq!(both.common_name(), Some("db1.example.com"));
    assert_eq!(both.has_alternative_name(false), Some(true));
    assert_eq!(both.has_alternative_name(true), Some(true));
    // 2026-11-21 07:29:33 and 2126-10-28 07:29:33, a UTCTime and a GeneralizedTime.
    assert_eq!(both.validity(), Some((1_795_246_173, 4_948_846_173)));

    let address = Certificate::parse(certificate!("ec-sha384")).unwrap();
    assert_eq!(address.has_alternative_name(false), Some(false));
    assert_eq!(address.has_alternative_name(true), Some(true));

    let oldest = Certificate::parse(certificate!("version1")).unwrap();
    assert_eq!(oldest.version, 1);
    assert_eq!(oldest.common_name(), Some("db1.example.com"));
    assert_eq!(oldest.has_alternative_name(false), Some(false));
}

#[test]
fn truncated_certificate_is_invalid() {
    let certificate = certificate!("ec-sha256");
    for end in 0..certificate.len() {
        assert!(Certificate::parse(&certificate[..end]).is_none(), "{end}");
        assert_eq!(end_point_hash(&certificate[..end]), None);
    }
    assert!(Certificate::parse(b"").is_none());
    assert!(Certificate::parse(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]).is_none());
    assert!(Certificate::parse(&[0x30, 0x80, 0, 0]).is_none());
}

#[test]
fn version_that_is_out_of_range_is_invalid() {
    let valid = certificate!("ec-sha256");
    let version = b"\xa0\x03\x02\x01\x02";
    let at = valid.windows(version.len()).position(|bytes| bytes == version).unwrap() + 4;
    for version in [0x7f, 0xff] {
        let mut damaged = valid.to_vec();
        damaged[at] = version;
        let parsed = Certificate::parse(&damaged).map(|certificate| certificate.version);
        assert_eq!(parsed, (version == 0x7f).then_some(0x80));
    }
}

proptest::proptest! {
    #[test]
    fn corrupted_certificate_does_not_panic(at in 0..465_usize, byte: u8) {
        let mut damaged = certificate!("ec-sha256").to_vec();
        damaged[at] = byte;
        let _ = end_point_hash(&damaged);
        if let Some(certificate) = Certificate::parse(&damaged) {
            let _ = (certificate.common_name(), certificate.has_alternative_name(false));
        }
    }
}
