//! [`Wire`]: a worker's sockets, as its core sees them. What the core orders is kept, and done when
//! its call has returned.

use std::{collections::HashSet, io::IoSlice};

use howdah_wire::startup::CancelKey;

use super::super::random::Random;
use crate::{Backlog, Channel, ClientId, Io, Peer, PoolId, ServerId, Transfer, WorkerId};

/// What a core ordered, to be done when its call has returned.
pub(super) enum Order {
    Send(Peer, Vec<u8>),
    Resume(Peer),
    Close(Peer),
    Open(ServerId, PoolId),
    Cancel(ServerId),
    Want(PoolId),
    Listen(ClientId),
    HandOver(ServerId, WorkerId, Box<Transfer>),
    Drain(Peer),
}

/// A worker's sockets.
pub(super) struct Wire {
    pub(super) orders: Vec<Order>,
    pub(super) paused: HashSet<Peer>,
    pub(super) slow: HashSet<Peer>,
    pub(super) random: Random,
    pub(super) slow_percent: u64,
}

impl Io for Wire {
    fn send(&mut self, to: Peer, slices: &[IoSlice<'_>]) -> Backlog {
        let bytes = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.orders.push(Order::Send(to, bytes));
        if self.slow.contains(&to) {
            return Backlog::Waiting;
        }
        if self.random.percent(self.slow_percent) {
            self.slow.insert(to);
            self.orders.push(Order::Drain(to));
            return Backlog::Waiting;
        }
        Backlog::Empty
    }

    fn pause(&mut self, peer: Peer) {
        assert!(self.paused.insert(peer), "{peer:?} is paused twice");
    }

    fn resume(&mut self, peer: Peer) {
        assert!(self.paused.remove(&peer), "{peer:?} is resumed and was not paused");
        self.orders.push(Order::Resume(peer));
    }

    fn close(&mut self, peer: Peer) {
        self.orders.push(Order::Close(peer));
    }

    fn listen(&mut self, client: ClientId, _: PoolId, channels: Vec<Channel>, _: bool) {
        assert!(!channels.is_empty());
        self.orders.push(Order::Listen(client));
    }

    fn open_server(&mut self, server: ServerId, pool: PoolId) {
        self.orders.push(Order::Open(server, pool));
    }

    fn send_cancel(&mut self, server: ServerId, _: PoolId, _: &CancelKey) {
        self.orders.push(Order::Cancel(server));
    }

    fn want_server(&mut self, pool: PoolId) {
        self.orders.push(Order::Want(pool));
    }

    fn hand_over(&mut self, server: ServerId, to: WorkerId, transfer: Box<Transfer>) {
        self.orders.push(Order::HandOver(server, to, transfer));
    }
}
