//! A worker seen from outside: its thread, its doorbell, and jobs for it.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use confine::Thread;
use port::sys::{Doorbell, Ringer};
use ring::intake::{FRAMES, Intake, STANDARD_FRAME};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use switch::{HeartbeatReader, Scratch};

use super::idle::IdleStrategy;
use super::{Job, Worker};
use crate::cpu_time::{add_caused, thread_time};
use crate::engine::notices::NoticeSender;
use crate::engine::reclaimer::Reclaimer;
use crate::engine::watchdog::{Alarm, Watched};
use crate::start::StartError;

/// How to run a worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerOptions {
    /// When to sleep.
    pub strategy: IdleStrategy,
    /// The CPU to bind it to, if any.
    pub cpu: Option<u32>,
    /// Most frames of a batch.
    pub batch: u16,
}

/// A running worker. Dropping it stops the thread.
#[derive(Debug)]
pub struct WorkerHandle {
    jobs: Sender<Job>,
    ringer: Ringer,
    thread: Option<JoinHandle<()>>,
    /// The CPU that it is bound to, if any.
    cpu: Option<u32>,
    heartbeat: HeartbeatReader,
    id: Pid,
}

impl WorkerHandle {
    /// Starts a worker, which leaves to `reclaimer` what takes long to free, and sends `notices`.
    ///
    /// # Errors
    /// No descriptors or threads left, or a CPU that is not there.
    pub fn spawn(
        number: u32,
        options: WorkerOptions,
        reclaimer: Reclaimer,
        notices: NoticeSender,
        alarm: Alarm,
    ) -> io::Result<Self> {
        let doorbell = Doorbell::new()?;
        let ringer = doorbell.ringer();
        let mut scratch = Scratch::new(options.batch, Intake::new(FRAMES, STANDARD_FRAME)?);
        let heartbeat = scratch.heartbeat().reader();
        let (jobs, inbox) = channel();
        let (ready, started) = channel();
        let body = move || {
            let bound = options.cpu.map_or(Ok(()), bind);
            let failed = bound.is_err();
            // The other side waits for this message and nothing else.
            let _ = ready.send(bound.map(|()| rustix::thread::gettid()));
            if !failed {
                confine::narrow(Thread::Worker);
                let strategy = options.strategy;
                Worker::new(doorbell, inbox, reclaimer, notices, alarm, strategy, scratch).run();
            }
        };
        let thread = std::thread::Builder::new().name(format!("worker{number}")).spawn(body)?;
        let id = started.recv().map_err(io::Error::other)??;
        Ok(Self { jobs, ringer, thread: Some(thread), cpu: options.cpu, heartbeat, id })
    }

    /// The CPU that the thread is bound to, if any.
    #[must_use]
    pub fn cpu(&self) -> Option<u32> {
        self.cpu
    }

    /// The thread, for the watchdog.
    #[must_use]
    pub fn watched(&self, name: String) -> Watched {
        Watched { heartbeat: self.heartbeat.clone(), thread: self.id, name }
    }

    /// Runs `job` on the worker between two turns and waits for its result. What the job takes of
    /// the worker counts as caused by this thread (`cpu_time::caused_time`).
    ///
    /// # Panics
    /// If the worker is gone: it ends only when it is told to, or by a bug.
    pub fn call<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Worker) -> R + Send + 'static,
    ) -> R {
        self.begin(job).wait()
    }

    /// Gives the worker `job`, as [`call`](Self::call) does, and does not wait yet.
    pub fn begin<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Worker) -> R + Send + 'static,
    ) -> PendingCall<R> {
        let (reply, result) = channel();
        self.post(move |worker| {
            let begin = thread_time();
            let done = job(worker);
            let took = thread_time().saturating_sub(begin);
            // The caller waits for it; only a bug can take the receiver away.
            let _ = reply.send((done, took));
        });
        PendingCall(result)
    }

    /// Runs `job` on the worker between two turns, after those before it. Nothing waits for it.
    pub fn post(&self, job: impl FnOnce(&mut Worker) + Send + 'static) {
        if self.jobs.send(Box::new(job)).is_ok() {
            self.ringer.ring();
        }
    }

    /// The doorbell, for other threads.
    pub fn ringer(&self) -> &Ringer {
        &self.ringer
    }
}

/// A job that a worker was given.
#[must_use]
pub struct PendingCall<R>(Receiver<(R, Duration)>);

impl<R> PendingCall<R> {
    /// Waits for the result of the job.
    ///
    /// # Panics
    /// As [`WorkerHandle::call`] does.
    pub fn wait(self) -> R {
        let (done, took) = self.0.recv().expect("a worker runs until it is stopped");
        add_caused(took);
        done
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.post(Worker::stop);
        if let Some(thread) = self.thread.take() {
            // A worker that panicked has said why already.
            let _ = thread.join();
        }
    }
}

/// Checks that this process may run on these CPUs.
pub fn check_cpus(cpus: &[u32]) -> Result<(), StartError> {
    // Where the kernel does not tell, binding a worker will.
    let Ok(set) = sched_getaffinity(None) else { return Ok(()) };
    let has = |cpu: usize| cpu < CpuSet::MAX_CPU && set.is_set(cpu);
    match cpus.iter().find(|&&cpu| !has(cpu as usize)) {
        None => Ok(()),
        Some(&cpu) => Err(StartError::Cpu { cpu, available: ranges(has) }),
    }
}

/// CPUs as people write them: "0-3, 6".
fn ranges(has: impl Fn(usize) -> bool) -> String {
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| has(cpu)).collect();
    let runs = cpus.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        run => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    runs.collect::<Vec<_>>().join(", ")
}

fn bind(cpu: u32) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_are_not_there_are_named_beside_those_that_are() {
        for cpu in [5000, 1023] {
            let error = check_cpus(&[cpu]).expect_err("no machine has it").to_string();
            assert!(error.starts_with(&format!("CPU {cpu} of --cpu")), "{error}");
        }
        assert!(check_cpus(&[]).is_ok());
        assert_eq!(ranges(|cpu| [0, 1, 2, 5, 7, 8].contains(&cpu)), "0-2, 5, 7-8");
    }
}
