//! Encryption: the settings, the rustls configuration for them, the negotiation at the start of a
//! connection, and channel binding.
//!
//! This module uses no sockets: the blocking client and the event loop share it.

mod ciphers;
mod config;
mod error;
mod files;
mod negotiation;
mod settings;
mod verifier;
mod x509;

pub use ciphers::{CipherLists, cipher_name};
pub use config::{
    check_authorities, check_certificates, check_private_key, client_config, client_verifier,
    server_identity, server_name,
};
pub use error::TlsError;
pub use negotiation::{Encryption, Negotiation, NegotiationError, OpeningStep};
pub use settings::{
    ChannelBindingMode, RootCertificates, SslMode, SslNegotiation, TlsSettings, TlsVersion,
};
pub use x509::{common_name, end_point_hash};

pub(crate) use settings::unsupported;
