//! A TCP connection that neither connects nor sends beyond a deadline.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs as _},
    time::Instant,
};

use howdah_connect::deadline::{remaining, retry};

/// A connected socket whose every call ends by its deadline, then with an error of the kind `TimedOut`.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    deadline: Instant,
}

impl Connection {
    /// Connects to the first address of `host` that takes it. Looking the name up may take longer
    /// than the deadline, as the system's resolver has its own patience.
    ///
    /// # Errors
    ///
    /// The name has no address, or none of its addresses took the connection by the deadline; the last
    /// one's reason.
    pub fn open(host: &str, port: u16, deadline: Instant) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        for address in (host, port).to_socket_addrs()? {
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

    /// Sets when calls give up from now on.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Whether the peer has hung up, as far as this side has heard. What it sent is thrown away.
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

    /// Says that no more will come, and waits until the peer has hung up too: then it has read
    /// everything. One that stays silent until the deadline is believed to have.
    ///
    /// # Errors
    ///
    /// The peer reset the connection, so that what it read is uncertain.
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

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(remaining(self.deadline)?))?;
        retry(|| self.stream.read(buffer))
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(remaining(self.deadline)?))?;
        retry(|| self.stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
