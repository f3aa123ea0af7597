//! The few fields of a certificate that rustls does not expose: its signature algorithm, names,
//! validity and version.
//!
//! Parsing does not verify: a caller that trusts these fields must verify the signature as well.
//! Source: RFC 5280, section 4.1; the encoding is DER (X.690).

use ring::digest;

/// Returns the hash of a certificate for channel binding (`tls-server-end-point`).
///
/// The hash function is that of the certificate's signature, with SHA-256 instead of MD5 and SHA-1.
/// `None` if the signature has no separate hash function (Ed25519) or an uncommon one; such a
/// connection cannot be bound. Source: RFC 5929, section 4.1.
pub fn end_point_hash(certificate: &[u8]) -> Option<Vec<u8>> {
    let mut algorithm = Der(Certificate::parse(certificate)?.signature_algorithm);
    let identifier = algorithm.expect(OBJECT_IDENTIFIER)?;
    let hash = match identifier {
        RSASSA_PSS => pss_hash(algorithm.expect(SEQUENCE)?)?,
        other => signature_hash(other)?,
    };
    Some(digest::digest(hash, certificate).as_ref().to_vec())
}

/// Returns the first common name of a certificate's subject: the user, in a client certificate.
/// Only trust it after verifying the certificate.
pub fn common_name(certificate: &[u8]) -> Option<String> {
    Certificate::parse(certificate)?.common_name().map(str::to_owned)
}

/// Whether a certificate is for this key, a `SubjectPublicKeyInfo` in DER; `None` if one of them
/// cannot be parsed.
pub(super) fn has_key(certificate: &[u8], public_key: &[u8]) -> Option<bool> {
    let mut info = Der(Der(public_key).expect(SEQUENCE)?);
    info.expect(SEQUENCE)?;
    Some(Certificate::parse(certificate)?.key == bits(info.expect(BIT_STRING)?)?)
}

const OBJECT_IDENTIFIER: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const INTEGER: u8 = 0x02;
const BOOLEAN: u8 = 0x01;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns the tag of context-specific `[n]`, constructed.
const fn context(n: u8) -> u8 {
    0xa0 | n
}

/// Returns the tag of a context-specific element with primitive contents.
const fn context_primitive(n: u8) -> u8 {
    0x80 | n
}

/// Object identifier 1.2.840.113549.1.1.10, from RFC 8017.
const RSASSA_PSS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10];
/// Object identifier 2.5.4.3, from X.520.
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
/// Object identifier 2.5.29.17, from RFC 5280.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 17];

/// Returns the hash function for a signature algorithm that names one.
fn signature_hash(identifier: &[u8]) -> Option<&'static digest::Algorithm> {
    match identifier {
        // 1.2.840.113549.1.1: RSA with MD5, SHA-1, SHA-256, -384, -512.
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, hash] => match hash {
            4 | 5 | 11 => Some(&digest::SHA256),
            12 => Some(&digest::SHA384),
            13 => Some(&digest::SHA512),
            _ => None,
        },
        // 1.2.840.10045.4: ECDSA with SHA-1, then with SHA-2 of three lengths.
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1] => Some(&digest::SHA256),
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, length] => sha2(length.wrapping_sub(1)),
        _ => None,
    }
}

/// Returns `hashAlgorithm` of RSASSA-PSS parameters (RFC 4055, section 3.1); the default is SHA-1.
fn pss_hash(parameters: &[u8]) -> Option<&'static digest::Algorithm> {
    let Some(explicit) = Der(parameters).next_if(context(0)) else { return Some(&digest::SHA256) };
    match Der(Der(explicit).expect(SEQUENCE)?).expect(OBJECT_IDENTIFIER)? {
        // 1.3.14.3.2.26 is SHA-1, 2.16.840.1.101.3.4.2 is SHA-2.
        [0x2b, 14, 3, 2, 26] => Some(&digest::SHA256),
        [0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, length] => sha2(*length),
        _ => None,
    }
}

fn sha2(length: u8) -> Option<&'static digest::Algorithm> {
    match length {
        1 => Some(&digest::SHA256),
        2 => Some(&digest::SHA384),
        3 => Some(&digest::SHA512),
        _ => None,
    }
}

/// A parsed certificate. Fields are contents without their tag and length unless noted otherwise.
#[derive(Clone, Debug)]
pub(super) struct Certificate<'a> {
    /// The signed part, with tag and length.
    pub(super) signed: &'a [u8],
    /// Version of the certificate, 1 to 3.
    pub(super) version: u8,
    pub(super) issuer: &'a [u8],
    pub(super) subject: &'a [u8],
    /// First and last second of validity, since the Unix epoch.
    pub(super) validity: (i64, i64),
    /// `AlgorithmIdentifier` of the subject's key.
    pub(super) key_algorithm: &'a [u8],
    pub(super) key: &'a [u8],
    /// Bodies of the extensions; empty before version 3.
    extensions: &'a [u8],
    /// `AlgorithmIdentifier` of the issuer's signature.
    pub(super) signature_algorithm: &'a [u8],
    pub(super) signature: &'a [u8],
}

impl<'a> Certificate<'a> {
    /// Parses a certificate; `None` if it is invalid.
    pub(super) fn parse(der: &'a [u8]) -> Option<Self> {
        let mut outer = Der(Der(der).expect(SEQUENCE)?);
        let signed = outer.expect_raw(SEQUENCE)?;
        let signature_algorithm = outer.expect(SEQUENCE)?;
        let signature = bits(outer.expect(BIT_STRING)?)?;

        let mut inner = Der(Der(signed).expect(SEQUENCE)?);
        let version = match inner.next_if(context(0)) {
            Some(version) => *Der(version).expect(INTEGER)?.first()? + 1,
            None => 1,
        };
        inner.expect(INTEGER)?;
        inner.expect(SEQUENCE)?;
        let issuer = inner.expect(SEQUENCE)?;
        let mut validity = Der(inner.expect(SEQUENCE)?);
        let validity = (validity.time()?, validity.time()?);
        let subject = inner.expect(SEQUENCE)?;
        let mut key_info = Der(inner.expect(SEQUENCE)?);
        let key_algorithm = key_info.expect(SEQUENCE)?;
        let key = bits(key_info.expect(BIT_STRING)?)?;
        inner.next_if(context_primitive(1));
        inner.next_if(context_primitive(2));
        let extensions = match inner.next_if(context(3)) {
            Some(explicit) => Der(explicit).expect(SEQUENCE)?,
            None => &[],
        };
        Some(Self {
            signed,
            version,
            issuer,
            subject,
            validity,
            key_algorithm,
            key,
            extensions,
            signature_algorithm,
            signature,
        })
    }

    /// Returns the first common name of the subject.
    pub(super) fn common_name(&self) -> Option<&'a str> {
        let mut names = Der(self.subject);
        while let Some(mut name) = names.expect(SET).map(Der) {
            while let Some(mut attribute) = name.expect(SEQUENCE).map(Der) {
                if attribute.expect(OBJECT_IDENTIFIER)? == COMMON_NAME {
                    let (_, text) = attribute.next()?;
                    return std::str::from_utf8(text).ok();
                }
            }
        }
        None
    }

    /// Whether the subject has alternative names of the kind under which this kind of host would be
    /// listed; `None` if they cannot be parsed.
    pub(super) fn has_alternative_name(&self, host_is_address: bool) -> Option<bool> {
        let tag = context_primitive(if host_is_address { 7 } else { 2 });
        let mut extensions = Der(self.extensions);
        while !extensions.0.is_empty() {
            let mut extension = Der(extensions.expect(SEQUENCE)?);
            let identifier = extension.expect(OBJECT_IDENTIFIER)?;
            extension.next_if(BOOLEAN);
            if identifier != SUBJECT_ALT_NAME {
                continue;
            }
            let mut names = Der(Der(extension.expect(OCTET_STRING)?).expect(SEQUENCE)?);
            while !names.0.is_empty() {
                if names.next()?.0 == tag {
                    return Some(true);
                }
            }
        }
        Some(false)
    }
}

/// Returns the bytes of a bit string without unused bits.
fn bits(contents: &[u8]) -> Option<&[u8]> {
    contents.strip_prefix(&[0])
}

/// Reads DER values from the front.
#[derive(Clone, Debug)]
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Reads the next value: its tag and its contents.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (bytes, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            // The number of length bytes; a certificate never needs five.
            0x81..=0x84 => {
                let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (contents, rest) = rest.split_at_checked(bytes)?;
        self.0 = rest;
        Some((tag, contents))
    }

    /// Reads the next value, which must have this tag.
    fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, contents) = self.next()?;
        (found == tag).then_some(contents)
    }

    /// Reads the next value if it has this tag.
    fn next_if(&mut self, tag: u8) -> Option<&'a [u8]> {
        if self.0.first() == Some(&tag) { self.expect(tag) } else { None }
    }

    /// Reads the next value, which must have this tag, and returns it with tag and length.
    fn expect_raw(&mut self, tag: u8) -> Option<&'a [u8]> {
        let before = self.0;
        self.expect(tag)?;
        Some(&before[..before.len() - self.0.len()])
    }

    /// Reads a time, in seconds since the Unix epoch.
    fn time(&mut self) -> Option<i64> {
        let (tag, text) = self.next()?;
        let digits = text.strip_suffix(b"Z")?;
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let (year, rest) = match tag {
            // Two-digit years: 50 is 1950, 49 is 2049.
            UTC_TIME => {
                let (year, rest) = digits.split_at_checked(2)?;
                let year = number(year);
                (if year < 50 { 2000 + year } else { 1900 + year }, rest)
            }
            GENERALIZED_TIME => {
                let (year, rest) = digits.split_at_checked(4)?;
                (number(year), rest)
            }
            _ => return None,
        };
        let [m1, m2, d1, d2, hour1, hour2, min1, min2, s1, s2] = *rest.first_chunk()?;
        let seconds =
            number(&[hour1, hour2]) * 3600 + number(&[min1, min2]) * 60 + number(&[s1, s2]);
        Some(days_before(year, number(&[m1, m2]), number(&[d1, d2])) * 86_400 + seconds)
    }
}

/// Parses decimal digits.
fn number(digits: &[u8]) -> i64 {
    digits.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'))
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar. The year is counted from
/// March, so that a leap day is its last day.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
        - 719_468
}

#[cfg(test)]
mod tests;
