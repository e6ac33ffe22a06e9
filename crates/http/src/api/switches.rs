//! Switches, their forwarding databases and multicast groups.

use axum::extract::State;
use protocol::name::{PortName, SwitchName};
use protocol::{
    FdbAdd, FdbDel, FdbEntry, FdbFlush, FdbList, FdbRequest, MdbChange, MdbEntry, MdbList,
    MdbRequest, Page, PageFrom, Request, SwitchInfo, SwitchRef, SwitchRequest, SwitchSettings,
    SwitchSpec,
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, Shared};
use crate::extract::{JsonBody, Parameters};
use crate::problem::Problem;

/// Operations on switches.
pub fn operations() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list, add))
        .routes(routes!(show, set, delete))
        .routes(routes!(fdb, add_to_fdb, flush_fdb))
        .routes(routes!(delete_from_fdb))
        .routes(routes!(mdb, add_to_mdb))
}

/// Lists switches.
#[utoipa::path(
    get, path = "/v1/switches", tag = "switches", operation_id = "list_switches",
    params(("from" = Option<String>, Query)),
    responses((status = 200, body = Page<SwitchInfo>))
)]
async fn list(State(api): State<Shared>, Parameters(page): Parameters<PageFrom>) -> Answer {
    api.answer(Request::Switch(SwitchRequest::List(page))).await
}

/// Creates a switch, which stays until it is deleted.
#[utoipa::path(
    post, path = "/v1/switches", tag = "switches", operation_id = "add_switch",
    request_body = SwitchSpec, responses((status = 201, description = "Created"))
)]
async fn add(State(api): State<Shared>, JsonBody(spec): JsonBody<SwitchSpec>) -> Answer {
    let place = format!("/v1/switches/{}", spec.switch);
    api.create(Request::Switch(SwitchRequest::Add(spec)), place).await
}

/// Shows a switch.
#[utoipa::path(
    get, path = "/v1/switches/{switch}", tag = "switches", operation_id = "show_switch",
    params(("switch" = String, Path)), responses((status = 200, body = SwitchInfo))
)]
async fn show(State(api): State<Shared>, Parameters(switch): Parameters<SwitchRef>) -> Answer {
    api.answer(Request::Switch(SwitchRequest::Show(switch))).await
}

/// Changes the settings that are given.
#[utoipa::path(
    patch, path = "/v1/switches/{switch}", tag = "switches", operation_id = "set_switch",
    params(("switch" = String, Path)),
    request_body = SwitchSettings, responses((status = 204, description = "Changed"))
)]
async fn set(
    State(api): State<Shared>,
    Parameters(SwitchRef { switch }): Parameters<SwitchRef>,
    JsonBody(settings): JsonBody<SwitchSettings>,
) -> Answer {
    api.answer(Request::Switch(SwitchRequest::Set(SwitchSpec { switch, settings }))).await
}

/// Deletes a switch with all its ports.
#[utoipa::path(
    delete, path = "/v1/switches/{switch}", tag = "switches", operation_id = "delete_switch",
    params(("switch" = String, Path)), responses((status = 204, description = "Deleted"))
)]
async fn delete(State(api): State<Shared>, Parameters(switch): Parameters<SwitchRef>) -> Answer {
    api.answer(Request::Switch(SwitchRequest::Del(switch))).await
}

/// Lists the forwarding database.
#[utoipa::path(
    get, path = "/v1/switches/{switch}/fdb", tag = "switches",
    params(("switch" = String, Path), ("from" = Option<String>, Query)),
    responses((status = 200, body = Page<FdbEntry>))
)]
async fn fdb(State(api): State<Shared>, Parameters(list): Parameters<FdbList>) -> Answer {
    api.answer(Request::Fdb(FdbRequest::List(list))).await
}

/// Adds a static entry; its port, which names the switch too, is a port of this switch.
#[utoipa::path(
    post, path = "/v1/switches/{switch}/fdb", tag = "switches",
    params(("switch" = String, Path)),
    request_body = FdbAdd, responses((status = 201, description = "Added"))
)]
async fn add_to_fdb(
    State(api): State<Shared>,
    Parameters(SwitchRef { switch }): Parameters<SwitchRef>,
    JsonBody(add): JsonBody<FdbAdd>,
) -> Answer {
    check_port(&add.port, &switch)?;
    let place = format!("/v1/switches/{switch}/fdb/{}?vlan={}", add.mac, add.vlan);
    api.create(Request::Fdb(FdbRequest::Add(add)), place).await
}

/// Deletes an entry.
#[utoipa::path(
    delete, path = "/v1/switches/{switch}/fdb/{mac}", tag = "switches",
    params(("switch" = String, Path), ("mac" = String, Path), ("vlan" = Option<u16>, Query)),
    responses((status = 204, description = "Deleted"))
)]
async fn delete_from_fdb(
    State(api): State<Shared>,
    Parameters(entry): Parameters<FdbDel>,
) -> Answer {
    api.answer(Request::Fdb(FdbRequest::Del(entry))).await
}

/// Forgets all learned entries, or those of one port.
#[utoipa::path(
    delete, path = "/v1/switches/{switch}/fdb", tag = "switches",
    params(("switch" = String, Path), ("port" = Option<String>, Query)),
    responses((status = 204, description = "Forgotten"))
)]
async fn flush_fdb(State(api): State<Shared>, Parameters(flush): Parameters<FdbFlush>) -> Answer {
    api.answer(Request::Fdb(FdbRequest::Flush(flush))).await
}

/// Lists the multicast database: queriers, router ports and members of groups.
#[utoipa::path(
    get, path = "/v1/switches/{switch}/mdb", tag = "switches",
    params(("switch" = String, Path), ("from" = Option<String>, Query)),
    responses((status = 200, body = Page<MdbEntry>))
)]
async fn mdb(State(api): State<Shared>, Parameters(list): Parameters<MdbList>) -> Answer {
    api.answer(Request::Mdb(MdbRequest::List(list))).await
}

/// Makes a port a static member of a group; it is a port of this switch.
#[utoipa::path(
    post, path = "/v1/switches/{switch}/mdb", tag = "switches",
    params(("switch" = String, Path)),
    request_body = MdbChange, responses((status = 201, description = "Added"))
)]
async fn add_to_mdb(
    State(api): State<Shared>,
    Parameters(SwitchRef { switch }): Parameters<SwitchRef>,
    JsonBody(add): JsonBody<MdbChange>,
) -> Answer {
    check_port(&add.port, &switch)?;
    let place = format!("/v1/ports/{}/mdb/{}?vlan={}", add.port, add.group, add.vlan);
    api.create(Request::Mdb(MdbRequest::Add(add)), place).await
}

fn check_port(port: &PortName, switch: &SwitchName) -> Result<(), Problem> {
    let detail = || format!("{port} is no port of {switch}; name one that is");
    if port.switch() == switch { Ok(()) } else { Err(Problem::bad_request(detail())) }
}
