//! The few fields of a certificate that rustls does not expose, such as signature algorithm, names,
//! validity and version.
//!
//! The crate `der` reads the encoding; this module knows which field comes where. It keeps slices
//! of the certificate as it was received, because a signature is verified over exactly those bytes.
//!
//! Parsing does not verify: a caller that trusts these fields must verify the signature as well.
//! Source: RFC 5280, section 4.1; the encoding is DER (X.690).

use der::{
    AnyRef, Decode as _, Reader as _, SliceReader, Tag, TagNumber, Tagged as _,
    asn1::{BitStringRef, GeneralizedTime, ObjectIdentifier, UtcTime},
};
use ring::digest::{self, SHA256, SHA384, SHA512};

/// Returns the hash of a certificate for channel binding (`tls-server-end-point`).
///
/// The hash function is that of the certificate's signature, with SHA-256 instead of MD5 and SHA-1.
/// `None` if the signature has no separate hash function (Ed25519) or an uncommon one, or if the
/// certificate cannot be parsed; such a connection cannot be bound. Source: RFC 5929, section 4.1.
pub fn end_point_hash(certificate: &[u8]) -> Option<Vec<u8>> {
    let algorithm = Certificate::parse(certificate)?.signature_algorithm;
    let hash = signature_hash(algorithm).ok()??;
    Some(digest::digest(hash, certificate).as_ref().to_vec())
}

/// Returns the first common name of a certificate's subject, if it has one: the user, in a client
/// certificate. Only trust it after verifying the certificate.
pub fn common_name(certificate: &[u8]) -> Option<String> {
    Certificate::parse(certificate)?.common_name().map(str::to_owned)
}

/// Whether a certificate is for `public_key`, a `SubjectPublicKeyInfo` in DER; `None` if the
/// certificate or the key cannot be parsed.
pub(super) fn has_key(certificate: &[u8], public_key: &[u8]) -> Option<bool> {
    let mut outer = SliceReader::new(public_key).ok()?;
    let (_, key) = public_key_info(&mut outer).ok()?;
    Some(Certificate::parse(certificate)?.key == key)
}

const RSASSA_PSS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.10");
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const SUBJECT_ALT_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");

/// Hash functions for binding a channel, by algorithm.
type HashTable = [(ObjectIdentifier, &'static digest::Algorithm)];

/// Signature algorithms that name a hash function.
static SIGNATURE_HASHES: &HashTable = &[
    // RSA with MD5, SHA-1 and SHA-2.
    (ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.4"), &SHA256),
    (ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.5"), &SHA256),
    (ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.11"), &SHA256),
    (ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.12"), &SHA384),
    (ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.13"), &SHA512),
    // ECDSA with SHA-1 and SHA-2.
    (ObjectIdentifier::new_unwrap("1.2.840.10045.4.1"), &SHA256),
    (ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.2"), &SHA256),
    (ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.3"), &SHA384),
    (ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.4"), &SHA512),
];

/// Hash functions in the parameters of RSASSA-PSS: SHA-1 and SHA-2.
static PSS_HASHES: &HashTable = &[
    (ObjectIdentifier::new_unwrap("1.3.14.3.2.26"), &SHA256),
    (ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.1"), &SHA256),
    (ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.2"), &SHA384),
    (ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.3"), &SHA512),
];

/// Returns the hash function for an `AlgorithmIdentifier`, if it has one in the tables.
fn signature_hash(algorithm: &[u8]) -> der::Result<Option<&'static digest::Algorithm>> {
    let mut algorithm = SliceReader::new(algorithm)?;
    let identifier: ObjectIdentifier = algorithm.decode()?;
    if identifier != RSASSA_PSS {
        return Ok(find(SIGNATURE_HASHES, &identifier));
    }
    // `hashAlgorithm` (RFC 4055, section 3.1); the default is SHA-1.
    let mut parameters = nested(&mut algorithm, Tag::Sequence)?;
    let Some(explicit) = contents_if(&mut parameters, constructed(0))? else {
        return Ok(Some(&SHA256));
    };
    let mut hash = nested(&mut SliceReader::new(explicit)?, Tag::Sequence)?;
    Ok(find(PSS_HASHES, &hash.decode()?))
}

fn find(
    table: &'static HashTable,
    identifier: &ObjectIdentifier,
) -> Option<&'static digest::Algorithm> {
    table.iter().find(|(row, _)| row == identifier).map(|(_, hash)| *hash)
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
    validity: (AnyRef<'a>, AnyRef<'a>),
    /// `AlgorithmIdentifier` of the subject's key.
    pub(super) key_algorithm: &'a [u8],
    pub(super) key: &'a [u8],
    /// Bodies of the extensions; empty if there are none, as before version 3.
    extensions: &'a [u8],
    /// `AlgorithmIdentifier` of the issuer's signature.
    pub(super) signature_algorithm: &'a [u8],
    pub(super) signature: &'a [u8],
}

impl<'a> Certificate<'a> {
    /// Parses a certificate; `None` if it is invalid.
    pub(super) fn parse(certificate: &'a [u8]) -> Option<Self> {
        Self::decode(certificate).ok()
    }

    fn decode(certificate: &'a [u8]) -> der::Result<Self> {
        let mut outer = nested(&mut SliceReader::new(certificate)?, Tag::Sequence)?;
        let signed = outer.tlv_bytes()?;
        let signature_algorithm = contents(&mut outer, Tag::Sequence)?;
        let signature = bits(&mut outer)?;

        let mut inner = nested(&mut SliceReader::new(signed)?, Tag::Sequence)?;
        let version = match contents_if(&mut inner, constructed(0))? {
            Some(version) => u8::from_der(version)?.saturating_add(1),
            None => 1,
        };
        contents(&mut inner, Tag::Integer)?;
        contents(&mut inner, Tag::Sequence)?;
        let issuer = contents(&mut inner, Tag::Sequence)?;
        let mut validity = nested(&mut inner, Tag::Sequence)?;
        let validity = (validity.decode()?, validity.decode()?);
        let subject = contents(&mut inner, Tag::Sequence)?;
        let (key_algorithm, key) = public_key_info(&mut inner)?;
        contents_if(&mut inner, primitive(1))?;
        contents_if(&mut inner, primitive(2))?;
        let extensions = match contents_if(&mut inner, constructed(3))? {
            Some(explicit) => contents(&mut SliceReader::new(explicit)?, Tag::Sequence)?,
            None => &[],
        };
        Ok(Self {
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

    /// Returns the first and last second of validity, since the Unix epoch; `None` if one of them
    /// is not a valid time or is before 1970. Not parsed earlier, because channel binding does not
    /// need it.
    pub(super) fn validity(&self) -> Option<(u64, u64)> {
        let seconds = |time: AnyRef<'_>| {
            let since_epoch = match time.tag() {
                Tag::UtcTime => time.decode_as::<UtcTime>().ok()?.to_unix_duration(),
                _ => time.decode_as::<GeneralizedTime>().ok()?.to_unix_duration(),
            };
            Some(since_epoch.as_secs())
        };
        let (from, until) = self.validity;
        Some((seconds(from)?, seconds(until)?))
    }

    /// Returns the first common name of the subject.
    pub(super) fn common_name(&self) -> Option<&'a str> {
        let mut names = SliceReader::new(self.subject).ok()?;
        while !names.is_finished() {
            let mut name = nested(&mut names, Tag::Set).ok()?;
            while !name.is_finished() {
                let mut attribute = nested(&mut name, Tag::Sequence).ok()?;
                if is_identifier(&mut attribute, COMMON_NAME).ok()? {
                    let text: AnyRef<'a> = attribute.decode().ok()?;
                    return str::from_utf8(text.value()).ok();
                }
            }
        }
        None
    }

    /// Whether the subject has an alternative name of one kind: an IP address if `host_is_address`,
    /// otherwise a DNS name. `None` if the extensions cannot be parsed.
    pub(super) fn has_alternative_name(&self, host_is_address: bool) -> Option<bool> {
        let tag = primitive(if host_is_address { 7 } else { 2 });
        let mut extensions = SliceReader::new(self.extensions).ok()?;
        while !extensions.is_finished() {
            let mut extension = nested(&mut extensions, Tag::Sequence).ok()?;
            let is_names = is_identifier(&mut extension, SUBJECT_ALT_NAME).ok()?;
            contents_if(&mut extension, Tag::Boolean).ok()?;
            if !is_names {
                continue;
            }
            let names = contents(&mut extension, Tag::OctetString).ok()?;
            let mut names = nested(&mut SliceReader::new(names).ok()?, Tag::Sequence).ok()?;
            while !names.is_finished() {
                if names.decode::<AnyRef<'_>>().ok()?.tag() == tag {
                    return Some(true);
                }
            }
        }
        Some(false)
    }
}

/// Returns the context-specific tag `[number]`, constructed.
const fn constructed(number: u32) -> Tag {
    Tag::ContextSpecific { constructed: true, number: TagNumber(number) }
}

/// Returns the context-specific tag `[number]`, primitive.
const fn primitive(number: u32) -> Tag {
    Tag::ContextSpecific { constructed: false, number: TagNumber(number) }
}

/// Reads a value with this tag, and returns its contents.
fn contents<'a>(reader: &mut SliceReader<'a>, tag: Tag) -> der::Result<&'a [u8]> {
    let value: AnyRef<'a> = reader.decode()?;
    value.tag().assert_eq(tag)?;
    Ok(value.value())
}

/// Reads a value with this tag, and returns a reader of its contents.
fn nested<'a>(reader: &mut SliceReader<'a>, tag: Tag) -> der::Result<SliceReader<'a>> {
    SliceReader::new(contents(reader, tag)?)
}

/// Reads the next value if it has this tag, and returns its contents.
fn contents_if<'a>(reader: &mut SliceReader<'a>, tag: Tag) -> der::Result<Option<&'a [u8]>> {
    if reader.is_finished() || Tag::peek(reader)? != tag {
        return Ok(None);
    }
    contents(reader, tag).map(Some)
}

/// Reads an object identifier and compares it. Also works for identifiers that are too long for
/// `der`.
fn is_identifier(reader: &mut SliceReader<'_>, identifier: ObjectIdentifier) -> der::Result<bool> {
    Ok(contents(reader, Tag::ObjectIdentifier)? == identifier.as_bytes())
}

/// Reads a bit string without unused bits.
fn bits<'a>(reader: &mut SliceReader<'a>) -> der::Result<&'a [u8]> {
    let bits: BitStringRef<'a> = reader.decode()?;
    bits.as_bytes().ok_or_else(|| Tag::BitString.value_error().to_error())
}

/// Reads a `SubjectPublicKeyInfo`. Returns the contents of its `AlgorithmIdentifier`, and the key.
fn public_key_info<'a>(reader: &mut SliceReader<'a>) -> der::Result<(&'a [u8], &'a [u8])> {
    let mut info = nested(reader, Tag::Sequence)?;
    Ok((contents(&mut info, Tag::Sequence)?, bits(&mut info)?))
}

#[cfg(test)]
mod tests;
