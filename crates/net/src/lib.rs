//! Sockets and timers for many PostgreSQL connections on one thread.
//!
//! A driver owns a [`Poller`], registers each [`Stream`], and waits for readiness or for the next
//! deadline. The session crate interprets the bytes; the driver decides what to send, and when.
//!
//! # Cost
//!
//! Streams are watched edge-triggered, so an exchange on a registered connection costs one
//! `epoll_wait` shared by all ready sockets, one `read` and one `write`, and usually no
//! `epoll_ctl`. A deadline costs one `timerfd_settime` when it differs from the one already armed.

mod activation;
mod dialer;
mod listener;
mod poller;
mod stream;
mod sys;
pub mod takeover;
mod tcp;
mod timers;

pub use activation::{
    ActivatedDescriptor, ActivatedSocket, ActivationError, activated_descriptors, activated_sockets,
};
pub use dialer::{DialError, Dialer};
pub use listener::{ListenError, Listener};
pub use poller::{Interest, Poller, SocketReadiness, Token, Waker};
pub use stream::{Received, Stream};
pub use tcp::TcpOptions;
pub use timers::Timers;
