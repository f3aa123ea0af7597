//! A TCP connection whose calls never outlast a deadline.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    time::Instant,
};

use super::{remaining, retry};

/// A connected socket. Each call returns by the deadline, if necessary with an error of kind
/// `TimedOut`.
#[derive(Debug)]
pub struct DeadlineStream {
    stream: TcpStream,
    deadline: Instant,
}

impl DeadlineStream {
    /// Uses a connected socket, which must block.
    pub fn new(stream: TcpStream, deadline: Instant) -> Self {
        Self { stream, deadline }
    }

    /// Looks up `host` and connects like [`connect`](Self::connect). The name lookup may outlast
    /// the deadline, because the system's resolver has its own timeout.
    ///
    /// # Errors
    ///
    /// The lookup failed, or no address accepted the connection by the deadline.
    pub fn open(host: &str, port: u16, deadline: Instant) -> io::Result<Self> {
        Self::connect((host, port).to_socket_addrs()?, deadline)
    }

    /// Connects to the first address that accepts the connection.
    ///
    /// # Errors
    ///
    /// `addresses` is empty, or none of them accepted by the deadline; in the latter case the error
    /// is that of the last address tried, or `TimedOut`.
    pub fn connect(
        addresses: impl IntoIterator<Item = SocketAddr>,
        deadline: Instant,
    ) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, remaining(deadline)?) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Self { stream, deadline });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sets the deadline of subsequent calls.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Whether the peer has closed the connection, or the connection has failed. Discards any data
    /// received so far.
    pub fn is_closed(&mut self) -> bool {
        let mut buffer = [0; 512];
        if self.stream.set_nonblocking(true).is_err() {
            return true;
        }
        let closed = loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => break true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error.kind() != io::ErrorKind::WouldBlock,
            }
        };
        closed || self.stream.set_nonblocking(false).is_err()
    }

    /// Shuts down writing and waits until the peer closes too, which means that it has read
    /// everything. A peer that does not close by the deadline is assumed to have read everything.
    ///
    /// # Errors
    ///
    /// The connection failed, for example because the peer reset it: how much the peer has read is
    /// unknown.
    pub fn finish(mut self) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)?;
        let mut buffer = [0; 512];
        loop {
            match self.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(remaining(self.deadline)?))?;
        retry(|| self.stream.read(buffer))
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(remaining(self.deadline)?))?;
        retry(|| self.stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
