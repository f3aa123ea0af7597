//! [`WelcomeMessage`]: the server's parameters, which clients get at login.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::session::parameter::SessionParameter;

/// The parameters that the pool's servers report at login, as of the last login in any worker. They
/// are read when a client logs in or is routed for the first time, not for each query.
#[derive(Debug, Default)]
pub struct WelcomeMessage(Mutex<Option<Arc<[SessionParameter]>>>);

impl WelcomeMessage {
    pub(crate) fn parameters(&self) -> Option<Arc<[SessionParameter]>> {
        self.0.lock().clone()
    }

    /// Copies the parameters of `from`, if `self` has none.
    pub(crate) fn inherit(&self, from: &Self) {
        if self.parameters().is_none()
            && let Some(known) = from.parameters()
        {
            self.set(known);
        }
    }

    pub(crate) fn set(&self, reported: Arc<[SessionParameter]>) {
        *self.0.lock() = Some(reported);
    }
}
