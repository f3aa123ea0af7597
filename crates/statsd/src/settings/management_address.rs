//! Serde module for the address of the management port; `"off"` is `None`.

use std::net::SocketAddr;

use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

/// The value that turns the port off.
const OFF: &str = "off";

pub(super) fn deserialize<'de, D>(from: D) -> Result<Option<SocketAddr>, D::Error>
where
    D: Deserializer<'de>,
{
    let text = String::deserialize(from)?;
    match text.as_str() {
        OFF => Ok(None),
        address => address.parse().map(Some).map_err(|_| {
            D::Error::custom(format!("{address:?} is not an address: write IP:PORT or \"off\""))
        }),
    }
}

pub(super) fn serialize<S>(address: &Option<SocketAddr>, to: S) -> Result<S::Ok, S::Error>
where
    S: Serializer,
{
    match address {
        Some(address) => to.collect_str(address),
        None => to.serialize_str(OFF),
    }
}
