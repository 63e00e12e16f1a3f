//! One instance of Tollgate in the simulation: the real library over simulated lines.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinHandle;
use tollgate::{SimulatedStream, SimulatedWorld, Tollgate};

use super::database::Database;
use super::line::{Condition, Plug, line};
use super::session::serve;

#[derive(Debug)]
pub(super) struct Instance {
    pub(super) number: usize,
    pub(super) gate: Tollgate,
    network: Arc<Network>,
    /// What its callers wait for.
    pub(super) tasks: Vec<JoinHandle<()>>,
}

/// The lines of one instance.
#[derive(Debug)]
struct Network {
    database: Arc<Database>,
    instance: usize,
    /// Nobody answers any more.
    down: AtomicBool,
    plugs: Mutex<Vec<Arc<Plug>>>,
}

impl SimulatedWorld for Network {
    fn dial(&self) -> Option<Box<dyn SimulatedStream>> {
        if self.down.load(Relaxed) {
            return None;
        }
        let (near, far) = line();
        self.plugs.lock().unwrap_or_else(PoisonError::into_inner).push(far.plug.clone());
        tokio::spawn(serve(self.database.clone(), far, self.instance));
        Some(Box::new(near))
    }

    fn number(&self) -> u64 {
        self.database.state().dice.number()
    }
}

impl Instance {
    pub(super) async fn open(
        database: &Arc<Database>,
        number: usize,
        url: &str,
    ) -> Result<Self, tollgate::Error> {
        let network = Arc::new(Network {
            database: database.clone(),
            instance: number,
            down: AtomicBool::new(false),
            plugs: Mutex::default(),
        });
        let gate = Tollgate::open_in(url, network.clone()).await?;
        database.log(|| format!("instance {number} starts"));
        Ok(Self { number, gate, network, tasks: Vec::new() })
    }

    /// Whoever waits for it hears nothing any more, nor does the database.
    pub(super) fn crash(self, condition: Condition) {
        self.network.database.log(|| format!("instance {} crashes ({condition:?})", self.number));
        self.network.down.store(true, Relaxed);
        self.network.pull_all(condition);
        for task in &self.tasks {
            task.abort();
        }
    }

    /// Cuts all lines; none can be made until it is [`Instance::reachable`] again.
    pub(super) fn out_of_reach(&self, condition: Condition) {
        self.network.down.store(true, Relaxed);
        self.network.pull_all(condition);
    }

    pub(super) fn reachable(&self) {
        self.network.down.store(false, Relaxed);
    }

    pub(super) fn unfinished(&mut self) -> usize {
        self.tasks.retain(|task| !task.is_finished());
        self.tasks.len()
    }
}

impl Network {
    fn pull_all(&self, condition: Condition) {
        let mut plugs = self.plugs.lock().unwrap_or_else(PoisonError::into_inner);
        for plug in plugs.drain(..) {
            plug.pull(condition);
        }
    }
}
