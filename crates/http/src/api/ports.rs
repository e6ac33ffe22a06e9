//! Ports and their counters.

use axum::extract::State;
use protocol::{
    FdbRequest, MdbChange, MdbRequest, NeighEntry, NeighList, Page, PortAdd, PortInfo, PortList,
    PortRef, PortRequest, PortSet, PortSettings, Request, StatsPage, StatsQuery, Trace, TraceQuery,
    WorkerMove, WorkerRequest,
};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, Shared, json};
use crate::extract::{JsonBody, Parameters};
use crate::history::PortHistory;

/// Operations on ports.
pub fn operations() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list, add))
        .routes(routes!(show, set, delete))
        .routes(routes!(enable))
        .routes(routes!(move_to_worker))
        .routes(routes!(delete_from_mdb))
        .routes(routes!(neighbours))
        .routes(routes!(trace))
        .routes(routes!(stats))
        .routes(routes!(history))
}

/// Lists ports.
#[utoipa::path(
    get, path = "/v1/ports", tag = "ports", operation_id = "list_ports",
    params(
        ("switch" = Option<String>, Query), ("brief" = Option<bool>, Query),
        ("from" = Option<String>, Query),
    ),
    responses((status = 200, body = Page<PortInfo>))
)]
async fn list(State(api): State<Shared>, Parameters(list): Parameters<PortList>) -> Answer {
    api.answer(Request::Port(PortRequest::List(list))).await
}

/// Creates a port, which stays until it is deleted.
#[utoipa::path(
    post, path = "/v1/ports", tag = "ports", operation_id = "add_port",
    request_body = PortAdd, responses((status = 201, description = "Created"))
)]
async fn add(State(api): State<Shared>, JsonBody(add): JsonBody<PortAdd>) -> Answer {
    let place = format!("/v1/ports/{}", add.port);
    api.create(Request::Port(PortRequest::Add(Box::new(add))), place).await
}

/// Shows a port.
#[utoipa::path(
    get, path = "/v1/ports/{port}", tag = "ports", operation_id = "show_port",
    params(("port" = String, Path)), responses((status = 200, body = PortInfo))
)]
async fn show(State(api): State<Shared>, Parameters(port): Parameters<PortRef>) -> Answer {
    api.answer(Request::Port(PortRequest::Show(port))).await
}

/// Changes the settings that are given.
#[utoipa::path(
    patch, path = "/v1/ports/{port}", tag = "ports", operation_id = "set_port",
    params(("port" = String, Path)),
    request_body = PortSettings, responses((status = 204, description = "Changed"))
)]
async fn set(
    State(api): State<Shared>,
    Parameters(PortRef { port }): Parameters<PortRef>,
    JsonBody(settings): JsonBody<PortSettings>,
) -> Answer {
    let change = PortSet { port, settings, vxlan: None };
    api.answer(Request::Port(PortRequest::Set(Box::new(change)))).await
}

/// Deletes a port; a client that holds it loses it.
#[utoipa::path(
    delete, path = "/v1/ports/{port}", tag = "ports", operation_id = "delete_port",
    params(("port" = String, Path)), responses((status = 204, description = "Deleted"))
)]
async fn delete(State(api): State<Shared>, Parameters(port): Parameters<PortRef>) -> Answer {
    api.answer(Request::Port(PortRequest::Del(port))).await
}

/// Enables a port that the switch has disabled.
#[utoipa::path(
    post, path = "/v1/ports/{port}/enable", tag = "ports",
    params(("port" = String, Path)), responses((status = 204, description = "Enabled"))
)]
async fn enable(State(api): State<Shared>, Parameters(port): Parameters<PortRef>) -> Answer {
    api.answer(Request::Port(PortRequest::Enable(port))).await
}

/// The worker that a port is to have.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WorkerNumber {
    /// Number of the worker, from 0 on.
    worker: u32,
}

/// Moves a port to another worker of its switch, until its client detaches it.
#[utoipa::path(
    put, path = "/v1/ports/{port}/worker", tag = "ports",
    params(("port" = String, Path)),
    request_body = WorkerNumber, responses((status = 204, description = "Moved"))
)]
async fn move_to_worker(
    State(api): State<Shared>,
    Parameters(PortRef { port }): Parameters<PortRef>,
    JsonBody(WorkerNumber { worker }): JsonBody<WorkerNumber>,
) -> Answer {
    api.answer(Request::Worker(WorkerRequest::Move(WorkerMove { port, worker }))).await
}

/// Ends the static membership of a port in a multicast group.
#[utoipa::path(
    delete, path = "/v1/ports/{port}/mdb/{group}", tag = "ports",
    params(("port" = String, Path), ("group" = String, Path), ("vlan" = Option<u16>, Query)),
    responses((status = 204, description = "Deleted"))
)]
async fn delete_from_mdb(
    State(api): State<Shared>,
    Parameters(entry): Parameters<MdbChange>,
) -> Answer {
    api.answer(Request::Mdb(MdbRequest::Del(entry))).await
}

/// Lists the IP addresses of stations that a port of kind vxlan knows.
#[utoipa::path(
    get, path = "/v1/ports/{port}/neigh", tag = "ports",
    params(("port" = String, Path), ("from" = Option<String>, Query)),
    responses((status = 200, body = Page<NeighEntry>))
)]
async fn neighbours(State(api): State<Shared>, Parameters(list): Parameters<NeighList>) -> Answer {
    api.answer(Request::Fdb(FdbRequest::Neigh(list))).await
}

/// Shows what the switch would do with a frame that the port sends, step by step.
///
/// `head` is the beginning of the frame in hexadecimal digits, `bytes` the length of the frame.
#[utoipa::path(
    get, path = "/v1/ports/{port}/trace", tag = "ports",
    params(("port" = String, Path), ("head" = String, Query), ("bytes" = u32, Query)),
    responses((status = 200, body = Trace))
)]
async fn trace(State(api): State<Shared>, Parameters(query): Parameters<TraceQuery>) -> Answer {
    api.answer(Request::Port(PortRequest::Trace(query))).await
}

/// Shows counters.
#[utoipa::path(
    get, path = "/v1/stats", tag = "ports",
    params(
        ("switch" = Option<String>, Query), ("port" = Option<String>, Query),
        ("gone" = Option<bool>, Query), ("from" = Option<String>, Query),
    ),
    responses((status = 200, body = StatsPage))
)]
async fn stats(State(api): State<Shared>, Parameters(query): Parameters<StatsQuery>) -> Answer {
    api.answer(Request::Port(PortRequest::Stats(query))).await
}

/// Shows what a port did in the last hour, in steps of ten seconds.
///
/// A port that is new has no steps yet. Of more than 1024 ports, the later ones have none.
#[utoipa::path(
    get, path = "/v1/ports/{port}/history", tag = "ports", operation_id = "port_history",
    params(("port" = String, Path)), responses((status = 200, body = PortHistory))
)]
async fn history(State(api): State<Shared>, Parameters(port): Parameters<PortRef>) -> Answer {
    // The daemon says whether there is such a port.
    api.call(Request::Port(PortRequest::Show(port.clone()))).await?;
    Ok(json(&api.history.of(port.port)))
}
