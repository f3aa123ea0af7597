//! [`LineTransport`]: a connection's bytes, encrypted or not.

use std::{
    io::{self, Read as _},
    os::fd::OwnedFd,
};

use rustix::net::{SendFlags, Shutdown, send, shutdown};
use rustls::ServerConnection;

/// A connection from which lines are read. The socket does not block.
#[derive(Debug)]
pub(crate) struct LineTransport {
    pub(crate) socket: OwnedFd,
    /// The state of TLS after the handshake; `None` if the connection is not encrypted.
    pub(crate) tls: Option<Box<ServerConnection>>,
}

/// Room for the content of the records that one read from the socket may complete: a record has at
/// most 16 KiB, and rustls buffers little more than one.
const RECORDS_ROOM: usize = 32 << 10;

impl LineTransport {
    /// Reads what is available, as read(2) does: 0 at the end of the stream. `buffer` must be
    /// larger than 32 KiB.
    ///
    /// # Errors
    ///
    /// Nothing is available ([`io::ErrorKind::WouldBlock`]), the connection is broken, or it ended
    /// without TLS' own end, so that bytes may be missing.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => Ok(rustix::io::read(&self.socket, buffer)?),
            Some(tls) => read_decrypted(&self.socket, tls, buffer),
        }
    }
}

impl LineTransport {
    /// Tells the peer that it should close the connection and open another one. What it sends until
    /// then can still be read.
    pub(crate) fn end_output(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // If this fails, the next read reports it.
            let _ = send_pending(&self.socket, tls);
        }
    }
}

fn read_decrypted(
    socket: &OwnedFd,
    tls: &mut ServerConnection,
    buffer: &mut [u8],
) -> io::Result<usize> {
    let mut filled = 0;
    loop {
        // First what is decrypted already: the socket does not become readable for it again.
        match tls.reader().read(&mut buffer[filled..]) {
            Ok(0) => {
                if filled > 0 {
                    // The peer need not close its socket, too. This makes it readable, so that the
                    // next read returns the end.
                    let _ = shutdown(socket, Shutdown::Read);
                }
                return Ok(filled);
            }
            Ok(bytes) => {
                filled += bytes;
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The error is returned again by the next read.
            Err(_) if filled > 0 => return Ok(filled),
            Err(error) => return Err(error),
        }
        if buffer.len() - filled < RECORDS_ROOM {
            return Ok(filled);
        }
        match receive(socket, tls) {
            Ok(_) => {}
            // The socket of a broken connection stays readable, so the next read returns the error.
            Err(_) if filled > 0 => return Ok(filled),
            Err(error) => return Err(error),
        }
    }
}

/// Reads once from the socket, decrypts, and sends the replies of TLS itself. Returns the number
/// of encrypted bytes; 0 at the end of the stream.
///
/// # Errors
///
/// Nothing is available, the connection is broken, or the peer violates the protocol. In the last
/// case the socket is shut down, so that it stays readable and the error is not overlooked.
pub(crate) fn receive(socket: &OwnedFd, tls: &mut ServerConnection) -> io::Result<usize> {
    let bytes = tls.read_tls(&mut SocketIo(socket))?;
    let processed = tls.process_new_packets();
    send_pending(socket, tls)?;
    if let Err(error) = processed {
        // If this fails, the connection is closed already.
        let _ = shutdown(socket, Shutdown::Both);
        return Err(io::Error::new(io::ErrorKind::InvalidData, error));
    }
    Ok(bytes)
}

/// Sends the pending output of TLS, as far as the socket accepts it.
pub(crate) fn send_pending(socket: &OwnedFd, tls: &mut ServerConnection) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(&mut SocketIo(socket)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads from and writes to a socket that does not block.
struct SocketIo<'s>(&'s OwnedFd);

impl io::Read for SocketIo<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self.0, buffer)?)
    }
}

impl io::Write for SocketIo<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
