//! Service state notifications to systemd, for `Type=notify` and `Type=notify-reload`.
//!
//! Source: sd_notify(3).

use std::{
    io,
    os::{linux::net::SocketAddrExt as _, unix::ffi::OsStrExt as _, unix::net::SocketAddr},
};

/// Sends a state such as `READY=1` if systemd asked for notifications. A failure is logged and
/// otherwise ignored.
pub(crate) fn service_state(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
        return;
    };
    if let Err(error) = send(path.as_bytes(), state) {
        tracing::warn!(%error, state, "cannot notify systemd");
    }
}

fn send(path: &[u8], state: &str) -> io::Result<()> {
    let address = match path {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[test]
fn path_and_abstract_addresses_are_notified() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    send(path.as_os_str().as_bytes(), "READY=1").unwrap();
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"READY=1");
    let name = format!("howdah-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = std::os::unix::net::UnixDatagram::bind_addr(&address).unwrap();
    send(format!("@{name}").as_bytes(), "STOPPING=1").unwrap();
    let length = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"STOPPING=1");
}
