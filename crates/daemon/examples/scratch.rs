//! scratch
#![allow(
    unsafe_code,
    missing_docs,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss
)]
use daemon::config::{WaitPolicy, WorkersConfig};
use daemon::control::datapath::*;
use daemon::datapath::Workers;
use ring::Region;
use ring::cursor::Span;
use ring::layout::*;
use ring::user::*;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
fn pin(cpu: usize) {
    let mut s = rustix::thread::CpuSet::new();
    s.set(cpu);
    rustix::thread::sched_setaffinity(None, &s).unwrap();
}
struct C {
    tx: TxRing,
    rx: RxRing,
    bell: u32,
    kick: std::os::fd::OwnedFd,
    wake: std::os::fd::OwnedFd,
}
fn open(w: &mut Workers, k: u32, slots: u32, group: Option<String>) -> C {
    let sp = Span::new(slots).unwrap();
    let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: sp, rx_slots: sp };
    let a = w
        .attach_shm(&ShmSpec {
            key: PortKey(k),
            name: format!("vale0:p{k}").parse().unwrap(),
            switch: SwitchKey(0),
            rings: RingSpec { counts, extra_bufs: 0, stride: 2112 },
            group,
            config: switch::PortConfig {
                on_full: if std::env::var("WAIT").is_ok() {
                    switch::OnFull::Wait
                } else {
                    switch::OnFull::Drop
                },
                ..Default::default()
            },
        })
        .unwrap();
    let g = &a.geometry;
    let rl = RegionLayout { stride: g.stride, buffers: g.buffers, pool: g.pool as usize };
    let r = Region::attach(a.region.as_fd(), rl).unwrap();
    let pl = PortLayout::new(g.block as usize, counts);
    let (mut tx, mut rx) = (TxRing::new(&r, &pl, 0), RxRing::new(&r, &pl, 0));
    if std::env::var("LIGHT").is_ok() {
        tx.allow_light();
        rx.allow_light();
    }
    C { tx, rx, bell: g.bell, kick: a.kick, wake: a.wake }
}
fn main() {
    let arg = |i: usize, d: u32| std::env::args().nth(i).map_or(d, |s| s.parse().unwrap());
    let (len, batch, touch, c0, cs, c1) =
        (arg(1, 60) as u16, arg(2, 256), arg(3, 1) == 1, arg(4, 0), arg(5, 1), arg(6, 0));
    let rxb = arg(7, 256);
    let slots = arg(8, 1024);
    let group = (arg(9, 0) == 1).then(|| "g".to_string());
    rustix::thread::membarrier(rustix::thread::MembarrierCommand::RegisterGlobalExpedited).unwrap();
    let mut w = Workers::start(&WorkersConfig { count: 1, cpus: vec![cs], wait: WaitPolicy::Auto })
        .unwrap();
    w.add_switch(SwitchKey(0), switch::SwitchConfig::default()).unwrap();
    let mut a = open(&mut w, 0, slots, group.clone());
    let mut b = open(&mut w, 1, slots, group);
    let stop = Arc::new(AtomicBool::new(false));
    let n = Arc::new(AtomicU64::new(0));
    let sum = Arc::new(AtomicU64::new(0));
    // teach b's address
    let _ = b.tx.frame(0, 60);
    {
        let f = b.tx.frame(0, 60);
        f[0..6].fill(0xff);
        f[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        f[12] = 8;
        f[13] = 0;
    }
    if b.tx.submit(1) {
        rustix::io::write(&b.kick, &ring::kick::encode(b.bell)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    let (s2, n2, sum2) = (stop.clone(), n.clone(), sum.clone());
    let rxt = std::thread::spawn(move || {
        pin(c1 as usize);
        let mut idle = 0;
        let mut cnt = 0u64;
        let mut acc = 0u64;
        while !s2.load(Ordering::Relaxed) {
            let k = b.rx.refresh().min(rxb);
            if k == 0 {
                idle += 1;
                if idle < 100 {
                    rustix::thread::sched_yield();
                } else {
                    idle = 0;
                    if b.rx.arm(1) {
                        let mut buf = [0u8; 64];
                        let _ = rustix::io::read(&b.wake, &mut buf);
                    }
                    b.rx.disarm();
                }
                continue;
            }
            idle = 0;
            if touch {
                for i in 0..k {
                    let f = b.rx.frame(i);
                    let mut o = 0;
                    while o < f.len() {
                        acc = acc.wrapping_add(u64::from_ne_bytes(
                            f[o..o + 8.min(f.len() - o)].try_into().unwrap_or([0; 8]),
                        ));
                        o += 64;
                    }
                }
            }
            cnt += u64::from(k);
            if b.rx.release(k) {
                rustix::io::write(&b.kick, &ring::kick::encode(b.bell)).unwrap();
            }
            n2.store(cnt, Ordering::Relaxed);
        }
        sum2.store(acc, Ordering::Relaxed);
    });
    let s3 = stop.clone();
    let txt = std::thread::spawn(move || {
        pin(c0 as usize);
        for i in 0..slots - 1 {
            let f = a.tx.frame(i, len);
            f.fill(1);
            f[0..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
            f[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
            f[12] = 8;
            f[13] = 0;
        }
        let mut idle = 0;
        let mut seq = 0u64;
        while !s3.load(Ordering::Relaxed) {
            let mut room = a.tx.owned();
            if room < batch {
                room = a.tx.refresh();
            }
            let k = room.min(batch);
            if k == 0 {
                idle += 1;
                if idle < 100 {
                    rustix::thread::sched_yield();
                } else {
                    idle = 0;
                    if a.tx.arm(slots / 2) {
                        let mut buf = [0u8; 64];
                        let _ = rustix::io::read(&a.wake, &mut buf);
                    }
                    a.tx.disarm();
                }
                continue;
            }
            idle = 0;
            for i in 0..k {
                let f = a.tx.frame(i, len);
                if touch {
                    f[0..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
                    f[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
                    f[12] = 8;
                    f[13] = 0;
                    f[14..].fill(seq as u8);
                    seq += 1;
                }
            }
            if a.tx.submit(k) {
                rustix::io::write(&a.kick, &ring::kick::encode(a.bell)).unwrap();
            }
        }
    });
    std::thread::sleep(Duration::from_millis(200));
    let (t0, n0) = (Instant::now(), n.load(Ordering::Relaxed));
    std::thread::sleep(Duration::from_millis(600));
    let (t1, n1) = (Instant::now(), n.load(Ordering::Relaxed));
    let st = w.stats(&[
        (PortKey(0), "vale0:p0".parse().unwrap()),
        (PortKey(1), "vale0:p1".parse().unwrap()),
    ]);
    println!(
        "{:.2} Mpps   tx {} rx {} drops {:?}",
        (n1 - n0) as f64 / (t1 - t0).as_secs_f64() / 1e6,
        st[0].tx.frames,
        st[1].rx.frames,
        st[1].drops
    );
    stop.store(true, Ordering::Relaxed);
    drop(w);
    let _ = (rxt, txt);
    std::process::exit(0);
}
