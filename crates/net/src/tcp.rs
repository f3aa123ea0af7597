//! [`TcpOptions`]: kernel options of TCP connections.

use std::{io, os::fd::AsFd, time::Duration};

use rustix::net::sockopt::{
    set_socket_keepalive, set_socket_recv_buffer_size, set_socket_send_buffer_size,
    set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_user_timeout,
};

/// Kernel options of TCP connections. An option that is `None` keeps the system's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Whether keepalive probes are sent to silent peers. If not, the other keepalive options have
    /// no effect.
    pub keepalive: bool,
    /// Idle time before the first probe, rounded up to whole seconds.
    pub keepalive_idle: Option<Duration>,
    /// Time between probes, rounded up to whole seconds.
    pub keepalive_interval: Option<Duration>,
    /// Number of unanswered probes after which the connection is lost.
    pub keepalive_count: Option<u32>,
    /// Time after which the kernel closes a connection with unacknowledged data, rounded down to
    /// whole milliseconds. Linux: `TCP_USER_TIMEOUT`.
    pub user_timeout: Option<Duration>,
    /// Size of the kernel's buffers in bytes, per direction, without the kernel's own overhead.
    pub buffer_bytes: Option<usize>,
}

impl TcpOptions {
    /// Applies the options to a socket that is not connected yet: a receive buffer that shrinks
    /// after segment size and window scale are negotiated stalls the peer. Accepted connections
    /// inherit the listener's options.
    ///
    /// # Errors
    ///
    /// The kernel rejected a value.
    pub fn apply(&self, socket: impl AsFd) -> io::Result<()> {
        let socket = socket.as_fd();
        if let Some(bytes) = self.buffer_bytes {
            set_socket_recv_buffer_size(socket, bytes)?;
            set_socket_send_buffer_size(socket, bytes)?;
        }
        if let Some(timeout) = self.user_timeout {
            let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
            set_tcp_user_timeout(socket, millis)?;
        }
        if !self.keepalive {
            return Ok(());
        }
        set_socket_keepalive(socket, true)?;
        if let Some(idle) = self.keepalive_idle {
            set_tcp_keepidle(socket, idle)?;
        }
        if let Some(interval) = self.keepalive_interval {
            set_tcp_keepintvl(socket, interval)?;
        }
        if let Some(count) = self.keepalive_count {
            set_tcp_keepcnt(socket, count)?;
        }
        Ok(())
    }
}

#[test]
fn accepted_connections_inherit_listener_options() {
    use rustix::net::sockopt::{
        socket_keepalive, tcp_keepcnt, tcp_keepidle, tcp_keepintvl, tcp_user_timeout,
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let options = TcpOptions {
        keepalive: true,
        keepalive_idle: Some(Duration::from_secs(11)),
        keepalive_interval: Some(Duration::from_secs(12)),
        keepalive_count: Some(13),
        user_timeout: Some(Duration::from_millis(1400)),
        buffer_bytes: Some(65_536),
    };
    options.apply(&listener).unwrap();
    let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    assert!(socket_keepalive(&accepted).unwrap());
    assert_eq!(tcp_keepidle(&accepted).unwrap(), Duration::from_secs(11));
    assert_eq!(tcp_keepintvl(&accepted).unwrap(), Duration::from_secs(12));
    assert_eq!(tcp_keepcnt(&accepted).unwrap(), 13);
    assert_eq!(tcp_user_timeout(&accepted).unwrap(), 1400);
}
