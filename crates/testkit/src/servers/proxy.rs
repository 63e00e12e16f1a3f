//! A TCP proxy that is the network, and as bad as a test wants it.
//!
//! It forwards bytes and knows nothing of what they mean, except that [`Proxy::cut_at`] looks for a
//! pattern in what clients send; inside TLS there is none to find. It has a thread of its own, so
//! it goes on while a test blocks. Each change is done when the call returns.

mod connection;
mod trap;

use std::net::Ipv4Addr;
use std::sync::mpsc as answers;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub use trap::Moment;
use trap::Trap;

use super::{POLL, PORT_TRIES, free_port};

/// In front of one port of the loopback. Cut when dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    upstream: u16,
    /// None once it is told to end.
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Passes everything to and from `upstream`, a port of the loopback.
    pub fn start(upstream: u16) -> Proxy {
        let (port, listener) = listen_on_a_free_port();
        let (orders, inbox) = mpsc::unbounded_channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let network = async {
                let listener = listener.set_nonblocking(true).map(|()| listener);
                let listener = listener.and_then(TcpListener::from_std);
                let listener = listener.expect("a socket can be waited for");
                Network::new(port, upstream, listener).run(inbox).await;
            };
            runtime.expect("the system gives a runtime").block_on(network);
        });
        Proxy { port, upstream, orders: Some(orders), thread: Some(thread) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same URL through this proxy: `proxy.through(&postgres.url())`.
    pub fn through(&self, url: &str) -> String {
        let (direct, port) = (format!("127.0.0.1:{}", self.upstream), self.port);
        assert!(url.contains(&direct), "this proxy leads to {direct}, not to {url}");
        url.replacen(&direct, &format!("127.0.0.1:{port}"), 1)
    }

    /// Ends a cut or a stall. What was stalled arrives; what was cut stays cut.
    pub fn pass(&self) {
        self.order(Change::Pass);
    }

    /// Closes all connections on both sides and refuses new ones.
    pub fn cut(&self) {
        self.order(Change::Cut);
    }

    /// Accepts, and forwards nothing in either direction: a cable pulled somewhere in between.
    pub fn stall(&self) {
        self.order(Change::Stall);
    }

    /// How long everything takes in each direction, until told otherwise: half of a round trip.
    pub fn latency(&self, latency: Duration) {
        self.order(Change::Latency(latency));
    }

    /// Cuts the first connection whose client sends `pattern` from now on, once; the others stay.
    /// Upper and lower case are the same. Let the pattern reach to the end of its message:
    /// `b"commit\0"` is the end of a simple query.
    pub fn cut_at(&self, pattern: &[u8], moment: Moment) {
        self.order(Change::Trap(Trap::new(pattern, moment)));
    }

    /// Whether [`Proxy::cut_at`] still waits for its pattern.
    pub fn is_armed(&self) -> bool {
        let (answer, armed) = answers::channel();
        self.order(Change::Look(answer));
        armed.recv().expect("the answer was given before the order was done")
    }

    fn order(&self, change: Change) {
        let (done, is_done) = answers::channel();
        let orders = self.orders.as_ref().expect("only dropping ends it");
        orders.send(Order { change, done }).expect("the proxy runs as long as we hold it");
        is_done.recv().expect("the proxy runs as long as we hold it");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            // If it panicked, the test that asked it for something knows.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Order {
    change: Change,
    done: answers::Sender<()>,
}

#[derive(Debug)]
enum Change {
    Pass,
    Cut,
    Stall,
    Latency(Duration),
    Trap(Trap),
    Look(answers::Sender<bool>),
}

/// What holds for all connections at this moment.
#[derive(Debug, Default)]
struct Weather {
    stalled: bool,
    latency: Duration,
    trap: Option<Trap>,
}

/// What runs on the proxy's thread. It has only one, so no byte moves while a change is made.
struct Network {
    port: u16,
    upstream: u16,
    /// None while cut: only a closed socket refuses.
    listener: Option<TcpListener>,
    connections: JoinSet<()>,
    weather: watch::Sender<Weather>,
}

impl Network {
    fn new(port: u16, upstream: u16, listener: TcpListener) -> Network {
        let (listener, connections) = (Some(listener), JoinSet::new());
        let weather = watch::Sender::new(Weather::default());
        Network { port, upstream, listener, connections, weather }
    }

    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => {
                        self.change(order.change).await;
                        // Nobody waits if the test thread is gone.
                        let _ = order.done.send(());
                    }
                    None => return,
                },
                client = accept(self.listener.as_ref()) => {
                    let weather = self.weather.clone();
                    self.connections.spawn(connection::carry(client, self.upstream, weather));
                }
                Some(_) = self.connections.join_next() => {}
            }
        }
    }

    async fn change(&mut self, change: Change) {
        match change {
            Change::Pass | Change::Stall => {
                let stalled = matches!(change, Change::Stall);
                self.weather.send_modify(|weather| weather.stalled = stalled);
                if self.listener.is_none() {
                    self.listener = Some(listen_again(self.port).await);
                }
            }
            Change::Cut => {
                self.listener = None;
                self.connections.shutdown().await;
            }
            Change::Latency(latency) => self.weather.send_modify(|it| it.latency = latency),
            Change::Trap(trap) => self.weather.send_modify(|it| it.trap = Some(trap)),
            Change::Look(answer) => {
                // Nobody waits if the test thread is gone.
                let _ = answer.send(self.weather.borrow().trap.is_some());
            }
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        // An error is that of a client which went away before it was let in.
        if let Ok((client, _)) = listener.accept().await {
            return client;
        }
    }
}

fn listen_on_a_free_port() -> (u16, std::net::TcpListener) {
    for _ in 0..PORT_TRIES {
        let port = free_port();
        if let Ok(listener) = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return (port, listener);
        }
    }
    panic!("{PORT_TRIES} ports in a row were taken before the proxy had them");
}

async fn listen_again(port: u16) -> TcpListener {
    for _ in 0..PORT_TRIES {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            Ok(listener) => return listener,
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
    panic!("somebody took port {port} while the proxy was cut");
}
