//! [`ForwardConnection`]: the connection of a forwarding server, whose calls have deadlines.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_connect::deadline::DeadlineStream;
use parking_lot::{Condvar, Mutex};
use rustls::{ServerConfig, ServerConnection};

use crate::{forwarding::BODY_BYTES_MAX, management::StopFlag, receiver::TOKEN_LINE_BYTES_MAX};

/// Interval at which an idle connection checks whether the server stops.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// A connection, encrypted or not.
#[derive(Debug)]
pub(super) struct ForwardConnection {
    socket: DeadlineStream,
    tls: Option<Box<ServerConnection>>,
}

impl ForwardConnection {
    /// Uses an accepted connection, with TLS if there is a configuration for it.
    pub(super) fn new(
        stream: TcpStream,
        tls: Option<&Arc<ServerConfig>>,
        deadline: Instant,
    ) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let tls = tls.map(|config| ServerConnection::new(Arc::clone(config)));
        let tls = tls.transpose().map_err(io::Error::other)?.map(Box::new);
        Ok(Self { socket: DeadlineStream::new(stream, deadline), tls })
    }

    /// Sets the time by which the following calls must have ended.
    pub(super) fn set_deadline(&mut self, deadline: Instant) {
        self.socket.set_deadline(deadline);
    }

    /// Reads the line with the token, without its end; `None` if the connection was closed before
    /// it.
    pub(super) fn receive_token(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        while line.len() <= TOKEN_LINE_BYTES_MAX {
            let mut byte = [0];
            match self.read(&mut byte)? {
                0 if line.is_empty() => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ if byte == *b"\n" => return Ok(Some(line)),
                _ => line.extend(byte),
            }
        }
        // Longer than any token, so it is not one.
        Ok(Some(line))
    }

    /// Waits for the first byte of a message. Returns `None` if the connection is closed, nothing
    /// arrives by `deadline`, or the server stops.
    pub(super) fn wait_for_message(
        &mut self,
        deadline: Option<Instant>,
        stopping: &StopFlag,
    ) -> io::Result<Option<u8>> {
        let mut byte = [0];
        loop {
            let now = Instant::now();
            self.set_deadline(now + STOP_CHECK_INTERVAL);
            match self.read(&mut byte) {
                Ok(0) => return Ok(None),
                Ok(_) => return Ok((!stopping.is_set()).then_some(byte[0])),
                Err(error) => match error.kind() {
                    io::ErrorKind::TimedOut => {
                        if stopping.is_set() || deadline.is_some_and(|deadline| deadline <= now) {
                            return Ok(None);
                        }
                    }
                    // A peer that ends does not always end TLS.
                    io::ErrorKind::UnexpectedEof => return Ok(None),
                    _ => return Err(error),
                },
            }
        }
    }
}

impl Read for ForwardConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.socket.read(buffer),
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.socket).read(buffer),
        }
    }
}

impl Write for ForwardConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.socket.write(bytes),
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.socket).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            None => self.socket.flush(),
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.socket).flush(),
        }
    }
}

/// The memory for batches that are being received, shared by all connections.
#[derive(Debug)]
pub(super) struct BatchMemory {
    free: Mutex<usize>,
    freed: Condvar,
    /// Locked while a batch is decoded and merged, because it takes more memory than its bytes.
    pub(super) decoding: Mutex<()>,
}

/// Memory that is reserved until dropped.
#[derive(Debug)]
pub(super) struct MemoryReservation<'m> {
    memory: &'m BatchMemory,
    bytes: usize,
}

impl BatchMemory {
    /// Bytes of all batches that are being received.
    const BYTES: usize = 4 * BODY_BYTES_MAX;
    /// Smaller batches need no reservation, so large ones do not delay them.
    const SMALL: usize = 64 << 10;

    /// Waits until there is memory for `bytes` bytes, at most [`BODY_BYTES_MAX`].
    pub(super) fn reserve(
        &self,
        bytes: usize,
        deadline: Instant,
    ) -> io::Result<MemoryReservation<'_>> {
        if bytes <= Self::SMALL {
            return Ok(MemoryReservation { memory: self, bytes: 0 });
        }
        let mut free = self.free.lock();
        while *free < bytes {
            if self.freed.wait_until(&mut free, deadline).timed_out() && *free < bytes {
                let why = "other servers are sending too many large batches at once";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        }
        *free -= bytes;
        Ok(MemoryReservation { memory: self, bytes })
    }
}

impl Default for BatchMemory {
    fn default() -> Self {
        Self { free: Self::BYTES.into(), freed: Condvar::new(), decoding: Mutex::default() }
    }
}

impl Drop for MemoryReservation<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            *self.memory.free.lock() += self.bytes;
            self.memory.freed.notify_all();
        }
    }
}

#[test]
fn memory_of_large_batches_is_bounded() {
    let memory = BatchMemory::default();
    let soon = || Instant::now() + Duration::from_millis(1);
    let reserved: Vec<_> =
        (0..4).map(|_| memory.reserve(BODY_BYTES_MAX, soon()).unwrap()).collect();
    assert!(memory.reserve(BODY_BYTES_MAX, soon()).is_err());
    assert!(memory.reserve(BatchMemory::SMALL, soon()).is_ok(), "small batches do not wait");
    std::thread::scope(|scope| {
        let later = Instant::now() + Duration::from_secs(60);
        let memory = &memory;
        let waiting = scope.spawn(move || memory.reserve(BODY_BYTES_MAX, later).is_ok());
        drop(reserved);
        assert!(waiting.join().unwrap());
    });
    assert_eq!(*memory.free.lock(), BatchMemory::BYTES);
}
