//! Sockets and timers for many PostgreSQL connections on one thread.
//!
//! A driver owns a [`Poller`], registers each [`Stream`] once, and waits for readiness or for the
//! next due time. What the bytes mean is the session crate's business; what to send, and when, the
//! driver's.
//!
//! # Cost
//!
//! Registration is edge-triggered in both directions, so a warm exchange costs one `epoll_wait`
//! shared by all ready sockets, one `read` and one `write` per connection, and no `epoll_ctl`.
//! A due time costs one `timerfd_settime` when it is earlier than the one already armed.

mod dialer;
mod listener;
mod passed;
mod poller;
mod stream;
mod sys;
mod tcp;
mod timers;

pub use dialer::{DialError, Dialer};
pub use listener::{ListenError, Listener};
pub use passed::{ActivatedSocket, PassedError, passed_sockets};
pub use poller::{Interest, Poller, Readiness, Token, Waker};
pub use stream::{Received, Stream};
pub use tcp::TcpOptions;
pub use timers::Timers;
