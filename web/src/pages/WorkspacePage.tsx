import { ActionButtons } from "../components/ActionButtons";
import { ConditionTable } from "../components/ConditionTable";
import { ErrorNote } from "../components/ErrorNote";
import { Facts } from "../components/Facts";
import { HomeNotice } from "../components/HomeSize";
import { Icon } from "../components/Icon";
import { MemoPanel } from "../components/MemoEditor";
import { PageTitle } from "../components/PageTitle";
import { PhaseChip } from "../components/PhaseChip";
import { SettingsForm } from "../components/SettingsForm";
import { Timeline } from "../components/Timeline";
import { WorkspaceStatus } from "../components/WorkspaceStatus";
import { messages } from "../i18n";
import { type One, useWorkspace } from "../state/one";
import { useWorkspaceTask } from "../state/task";
import type { Workspace } from "../types";

export function WorkspacePage({ id }: { id: string }) {
  const text = messages.value.detail;
  const one = useWorkspace(id);
  return (
    <>
      <a class="back" href={one.viewer === "admin" && one.workspace ? "/admin/workspaces" : "/"}>
        <Icon name="back" />
        {text.back}
      </a>
      {one.workspace ? <Detail one={one} workspace={one.workspace} /> : <Missing one={one} />}
    </>
  );
}

function Missing({ one }: { one: One }) {
  const text = messages.value;
  if (!one.error) return <p class="muted">{text.list.loading}</p>;
  if (one.error.status === 404 || one.error.status === 403) return <p>{text.detail.notFound}</p>;
  return <ErrorNote error={one.error} />;
}

function Detail({ one, workspace }: { one: One; workspace: Workspace }) {
  const text = messages.value;
  const isOwner = one.viewer === "owner";
  return (
    <>
      <Head one={one} workspace={workspace} />
      <div class="detail">
        <div class="detail-main">
          {isOwner && <MemoPanel workspace={workspace} />}
          <section class="panel">
            <h2>{text.detail.timeline}</h2>
            <Timeline id={workspace.id} />
          </section>
        </div>
        <div class="detail-side">
          <section class="panel">
            <h2>{text.detail.facts}</h2>
            <Facts workspace={workspace} />
          </section>
          <section class="panel">
            <h2>{text.detail.conditions}</h2>
            <ConditionTable conditions={workspace.conditions} />
          </section>
          {isOwner && <SettingsForm workspace={workspace} />}
        </div>
      </div>
    </>
  );
}

function Head({ one, workspace }: { one: One; workspace: Workspace }) {
  const task = useWorkspaceTask(workspace);
  return (
    <section
      class="panel detail-head"
      data-testid="workspace-detail"
      data-workspace-id={workspace.id}
      data-phase={workspace.phase}
      data-operation={workspace.operation}
    >
      <PageTitle title={workspace.name}>
        <PhaseChip phase={workspace.phase} />
      </PageTitle>
      {one.viewer === "admin" && <p class="muted">{messages.value.card.owner(workspace.owner.username)}</p>}
      {workspace.description && <p>{workspace.description}</p>}
      <WorkspaceStatus workspace={workspace} />
      <HomeNotice home={workspace.home} />
      <ErrorNote error={task.error} onDismiss={task.clear} />
      <ActionButtons workspace={workspace} viewer={one.viewer} task={task} onDone={one.reload} />
    </section>
  );
}
