/* The protocol of decision 0008: two tensors, three ranks, one vertex that decides.
   Run by scripts/model.sh, which chooses:
     SET0, SET1   who takes part in tensor 0 and tensor 1: bit r = rank r
     AWAY         which ranks are on a second host: bit r = rank r
     STEPS        how often each tensor is submitted
     BEFORE       how many steps lie behind all ranks already: the first freeze may come at once
     BREAKS       how many ranks vote BREAK for no reason the model knows (any deviation)
     WANTS        how many impatient ranks ask for a thaw after they have voted READY
     CRASHES      how many ranks die
     FAILS        how many ranks end in an error of their own, while their process lives on
     DEVIANT      who does one of these four; else anybody, or rank 2 if all have equal parts
     CHAIN        1: rank 2 has its stream from rank 1; else all have it from rank 0, the root
     STUBBORN     1: rank 2 submits tensor 1 first and waits for it before it submits tensor 0
   MUTANT breaks the protocol on purpose; each mutant has to fail (see model.sh). */

#ifndef SET0
#define SET0 7
#endif
#ifndef SET1
#define SET1 7
#endif
#ifndef AWAY
#define AWAY 0
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef BEFORE
#define BEFORE 0
#endif
#ifndef BREAKS
#define BREAKS 1
#endif
#ifndef WANTS
#define WANTS 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef FAILS
#define FAILS 0
#endif
#ifndef CHAIN
#define CHAIN 0
#endif
#ifndef STUBBORN
#define STUBBORN 0
#endif
#ifndef FREEZES
#define FREEZES 2
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

#define N 3
#define IN(set, r) (((set) >> (r)) & 1)
#define MEMBER(r, t) ((t) == 0 -> IN(SET0, r) : IN(SET1, r))
#define SET_OF(t) ((t) == 0 -> SET0 : SET1)
#define AT(r, t) (2 * (r) + (t))

mtype = { ANNOUNCE, WANT, THAWED, LEFT, READY, FREEZE, THAW, DEPARTED };

/* What 0008 promises under "Why this is right", by its numbers there. The checker says
   ||(NUMBER==0) of the one that is broken. */
#define ONE_OUTCOME 1   /* Members come to one verdict, READY only if all said so; a tensor that some
                           reduce frozen, nobody reduces negotiated. */
#define NOTHING_TWICE 2 /* Nothing is reduced or announced twice. What is lost is waited for, see 4. */
#define ONE_ORDER 3     /* Frozen or negotiated, not both; ranks that share two tensors reduce them
                           in one order. */
#define PROGRESS 4      /* No deadlock, nothing lost: what is submitted is reduced or, where a rank
                           fails or dies, ends with an error. */
#define EPOCHS_APART 5  /* Nobody is in two freezes. */
#define PROMISE(number, holds) assert((holds) || (number) == 0)

/* To the root: kind, tensor, freezes the sender has applied. The stream: kind, and a tensor or, of
   FREEZE, how many tensors a step has: the first one, or both. */
chan up[N] = [8] of { mtype, byte, byte };
chan stream[N] = [10] of { mtype, byte };

/* The word of each rank: READY for all its buckets below `ready`, BREAK for the rest once broken.
   The lowest rank of a set on a host, its leader, says in the same way what it found of its host,
   and of all hosts. Messages between leaders are left out: words only grow, and a vote that is read
   late is as good as one that comes late. */
byte word_epoch[N];
byte word_ready[N];
bit word_broken[N];
byte host_ready[N];
byte outcome_ready[N];
bit has_left[N];    /* Its farewell: it has ended in an error and casts nothing any more. */
bit leaves_open[N]; /* It did not say what became of the bucket that its host was READY for. */

byte submitted[6];
byte done[6];
bit in_flight[6];
bit is_dead[N];
bit has_answer[N]; /* Its callers have been told of an error. */
byte breaks_left = BREAKS;
byte wants_left = WANTS;
byte crashes_left = CRASHES;
byte fails_left = FAILS;

/* What the n-th reduction of a tensor was: 0 not yet, 1 negotiated, 1 + epoch frozen. All its
   members have to mean the same. Each counts as reduced when the first of them begins. */
byte how[8];
/* Ranks 1 and 2, if they share both tensors, reduce them in one order. */
byte order[8];
byte order_length;
byte own_length[N];

#include "frozen_schedule_rank.pml"

inline Tell(kind, tensor) {
  TellRank(0, kind, tensor);
  TellRank(1, kind, tensor);
  if
  :: !CHAIN -> TellRank(2, kind, tensor)
  :: else
  fi
}

active proctype Root() {
  byte ready[2];   /* Who is ready, bit by bit. */
  byte decided[2] = BEFORE;
  byte thawed = 7; /* Who has left the frozen schedule. */
  bit is_frozen = 0;
  bit is_over = 0; /* Somebody has left: nothing becomes ready any more, and nothing freezes. */
  byte freezes = 0;
  byte r;
  byte t;
  byte seen;
  atomic {
    run Rank(0, up[0], stream[0]);
    run Rank(1, up[1], stream[1]);
    run Rank(2, up[2], stream[2])
  }
end_idle:
  do
  :: atomic {
      nempty(up[0]) || nempty(up[1]) || nempty(up[2]) ->
      if
      :: nempty(up[0]) -> r = 0
      :: nempty(up[1]) -> r = 1
      :: nempty(up[2]) -> r = 2
      fi;
      if
      :: up[r]?ANNOUNCE, t, seen ->
        if
        :: seen == freezes || MUTANT == 4 ->
          PROMISE(NOTHING_TWICE, !((ready[t] >> r) & 1));
          ready[t] = ready[t] | (1 << r)
        :: else /* Said before the freeze: taken back. */
        fi
      :: up[r]?WANT, _, seen ->
        if
        :: is_frozen && seen == freezes -> is_frozen = 0; Tell(THAW, 0)
        :: else
        fi
      :: up[r]?THAWED, _, _ ->
        PROMISE(EPOCHS_APART, !((thawed >> r) & 1));
        thawed = thawed | (1 << r);
        if
        :: is_frozen -> is_frozen = 0; Tell(THAW, 0)
        :: else
        fi
      :: up[r]?LEFT, _, _ ->
        is_over = 1;
        if
        :: is_frozen -> is_frozen = 0; Tell(THAW, 0)
        :: else
        fi;
        Tell(DEPARTED, 0)
      fi;
      t = (is_over -> 2 : 0);
      do
      :: t < 2 && ready[t] == SET_OF(t) -> ready[t] = 0; decided[t]++; Tell(READY, t); t++
      :: t < 2 && ready[t] != SET_OF(t) -> t++
      :: t == 2 -> break
      od
    }
  /* Rank 0 has ended, and may have told nobody why. */
  :: has_left[0] -> break
  /* What a parent that has left did not pass on. */
  :: atomic { CHAIN && has_left[1] && nempty(up[2]) -> up[2]?_, _, _ }
  /* A step is over. */
  :: atomic {
      !is_frozen && !is_over && (thawed == 7 || MUTANT == 6) && freezes < FREEZES &&
      decided[0] > 0 &&
      (decided[1] == 0 || decided[1] == decided[0]) ->
      t = (decided[1] == 0 -> 1 : 2);
      ready[0] = 0;
      ready[1] = 0;
      decided[0] = 0;
      decided[1] = 0;
      thawed = 0;
      is_frozen = 1;
      freezes++;
      Tell(FREEZE, t)
    }
  od
}

#define HAS_ENDED(r, t) (!MEMBER(r, t) || done[AT(r, t)] == STEPS)
#define IS_CONTENT(r) (has_answer[r] || (HAS_ENDED(r, 0) && HAS_ENDED(r, 1)))

active proctype Monitor() {
end_wait:
  timeout;
  PROMISE(PROGRESS, IS_CONTENT(0) && IS_CONTENT(1) && IS_CONTENT(2))
}
