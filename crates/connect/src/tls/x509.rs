//! The few fields of a certificate that rustls does not give: its signature algorithm, names,
//! validity and version.
//!
//! Reading is not judging: whoever believes what stands here has to verify the signature as well.
//! Source: RFC 5280, section 4.1; the encoding is DER (X.690).

use ring::digest;

/// The hash of a certificate that binds a login to the TLS connection it was presented on
/// (`tls-server-end-point`).
///
/// It is made with the hash function of the certificate's own signature, SHA-256 in place of MD5
/// and SHA-1. `None` if the signature has no hash function of its own (Ed25519) or an uncommon one;
/// such a connection cannot be bound. Source: RFC 5929, section 4.1.
pub fn end_point_hash(certificate: &[u8]) -> Option<Vec<u8>> {
    let mut algorithm = Der(Certificate::parse(certificate)?.signature_algorithm);
    let identifier = algorithm.take(OBJECT_IDENTIFIER)?;
    let hash = match identifier {
        RSASSA_PSS => pss_hash(algorithm.take(SEQUENCE)?)?,
        other => signature_hash(other)?,
    };
    Some(digest::digest(hash, certificate).as_ref().to_vec())
}

/// The first common name of a certificate's subject: whom it is for, where a client shows it. Only
/// somebody who has verified the certificate may believe it.
pub fn common_name(certificate: &[u8]) -> Option<String> {
    Certificate::parse(certificate)?.common_name().map(str::to_owned)
}

/// Whether a certificate is for this key, a `SubjectPublicKeyInfo` in DER; `None` if one of them cannot
/// be read.
pub(super) fn has_key(certificate: &[u8], public_key: &[u8]) -> Option<bool> {
    let mut info = Der(Der(public_key).take(SEQUENCE)?);
    info.take(SEQUENCE)?;
    Some(Certificate::parse(certificate)?.key == bits(info.take(BIT_STRING)?)?)
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

/// `[n]`, constructed.
const fn context(n: u8) -> u8 {
    0xa0 | n
}

/// `[n]`, primitive.
const fn context_primitive(n: u8) -> u8 {
    0x80 | n
}

/// 1.2.840.113549.1.1.10
const RSASSA_PSS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10];
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
/// 2.5.29.17
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 17];

/// The hash function to use for a signature algorithm that has one in its name.
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

/// `hashAlgorithm` of RSASSA-PSS parameters (RFC 4055, section 3.1); SHA-1 unless it is there.
fn pss_hash(parameters: &[u8]) -> Option<&'static digest::Algorithm> {
    let Some(explicit) = Der(parameters).take_if(context(0)) else { return Some(&digest::SHA256) };
    match Der(Der(explicit).take(SEQUENCE)?).take(OBJECT_IDENTIFIER)? {
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

/// A certificate taken apart. Fields are contents without their tag and length, if not said
/// otherwise.
#[derive(Clone, Debug)]
pub(super) struct Certificate<'a> {
    /// What the issuer signed, with tag and length.
    pub(super) signed: &'a [u8],
    /// 1 to 3.
    pub(super) version: u8,
    pub(super) issuer: &'a [u8],
    pub(super) subject: &'a [u8],
    /// First and last second of its life, since the Unix epoch.
    pub(super) validity: (i64, i64),
    /// `AlgorithmIdentifier` of the subject's key.
    pub(super) key_algorithm: &'a [u8],
    pub(super) key: &'a [u8],
    /// Bodies of the extensions, none before version 3.
    extensions: &'a [u8],
    /// `AlgorithmIdentifier` of the issuer's signature.
    pub(super) signature_algorithm: &'a [u8],
    pub(super) signature: &'a [u8],
}

impl<'a> Certificate<'a> {
    /// Takes a certificate apart, or gives `None` if it is none.
    pub(super) fn parse(der: &'a [u8]) -> Option<Self> {
        let mut outer = Der(Der(der).take(SEQUENCE)?);
        let signed = outer.take_whole(SEQUENCE)?;
        let signature_algorithm = outer.take(SEQUENCE)?;
        let signature = bits(outer.take(BIT_STRING)?)?;

        let mut inner = Der(Der(signed).take(SEQUENCE)?);
        let version = match inner.take_if(context(0)) {
            Some(version) => *Der(version).take(INTEGER)?.first()? + 1,
            None => 1,
        };
        inner.take(INTEGER)?;
        inner.take(SEQUENCE)?;
        let issuer = inner.take(SEQUENCE)?;
        let mut validity = Der(inner.take(SEQUENCE)?);
        let validity = (validity.time()?, validity.time()?);
        let subject = inner.take(SEQUENCE)?;
        let mut key_info = Der(inner.take(SEQUENCE)?);
        let key_algorithm = key_info.take(SEQUENCE)?;
        let key = bits(key_info.take(BIT_STRING)?)?;
        inner.take_if(context_primitive(1));
        inner.take_if(context_primitive(2));
        let extensions = match inner.take_if(context(3)) {
            Some(explicit) => Der(explicit).take(SEQUENCE)?,
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

    /// The first common name of the subject.
    pub(super) fn common_name(&self) -> Option<&'a str> {
        let mut names = Der(self.subject);
        while let Some(mut name) = names.take(SET).map(Der) {
            while let Some(mut attribute) = name.take(SEQUENCE).map(Der) {
                if attribute.take(OBJECT_IDENTIFIER)? == COMMON_NAME {
                    let (_, text) = attribute.next()?;
                    return std::str::from_utf8(text).ok();
                }
            }
        }
        None
    }

    /// Whether the subject has alternative names of the kind that a host of this kind would be
    /// listed under; `None` if they cannot be read.
    pub(super) fn has_alternative_name(&self, host_is_address: bool) -> Option<bool> {
        let wanted = context_primitive(if host_is_address { 7 } else { 2 });
        let mut extensions = Der(self.extensions);
        while !extensions.0.is_empty() {
            let mut extension = Der(extensions.take(SEQUENCE)?);
            let identifier = extension.take(OBJECT_IDENTIFIER)?;
            extension.take_if(BOOLEAN);
            if identifier != SUBJECT_ALT_NAME {
                continue;
            }
            let mut names = Der(Der(extension.take(OCTET_STRING)?).take(SEQUENCE)?);
            while !names.0.is_empty() {
                if names.next()?.0 == wanted {
                    return Some(true);
                }
            }
        }
        Some(false)
    }
}

/// The bytes of a bit string that ends at a byte's end.
fn bits(contents: &[u8]) -> Option<&[u8]> {
    contents.strip_prefix(&[0])
}

/// Takes DER values from the front.
#[derive(Clone, Debug)]
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Takes the next value: its tag and its contents.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (bytes, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            // That many bytes of length follow; a certificate is far from needing a fifth.
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

    /// Takes the next value, which must have this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, contents) = self.next()?;
        (found == tag).then_some(contents)
    }

    /// Takes the next value if it has this tag.
    fn take_if(&mut self, tag: u8) -> Option<&'a [u8]> {
        if self.0.first() == Some(&tag) { self.take(tag) } else { None }
    }

    /// Takes the next value, which must have this tag, and gives it with tag and length.
    fn take_whole(&mut self, tag: u8) -> Option<&'a [u8]> {
        let before = self.0;
        self.take(tag)?;
        Some(&before[..before.len() - self.0.len()])
    }

    /// Takes a time, in seconds since the Unix epoch.
    fn time(&mut self) -> Option<i64> {
        let (tag, text) = self.next()?;
        let digits = text.strip_suffix(b"Z")?;
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let (year, rest) = match tag {
            // Two digits: 50 is 1950, 49 is 2049.
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

/// The number that decimal digits stand for.
fn number(digits: &[u8]) -> i64 {
    digits.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. The year is counted from March, so
/// that a leap day is its last day.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
        - 719_468
}

#[cfg(test)]
mod tests;
