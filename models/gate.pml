/* The KV gate with 3 ranks and 2 requests: no decode node completes a request with another's KV, and nobody hangs.

   spin -a gate.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m100000        must find no error
   The same with -DNO_TURNS, -DFORGET_WRITERS, -DNO_REVOKE or -DNO_SETTLE (given to spin) must find one each: the gate
   without its turns; leaving while an admitted rank writes; leaving the relay open after a failure; a restarted gate
   that does not wait.

   Requests are 0 and 1. What vLLM and its connector do is from tilert 0.1.6.post3, pd_vllm/prefill_connector.py; what
   is left out, and why, is in docs/gate.md. */

#define RANKS 3
#define REQUESTS 2
#define AT(rank, q) ((rank) * REQUESTS + (q))

mtype = { OUTSIDE, SUBMITTED, RUNNING, DROPPED };
mtype vllm[REQUESTS] = OUTSIDE;
byte staging[RANKS] = 2;            /* whose KV lies in each rank's one buffer */
bool extracted[RANKS * REQUESTS];
bool aborted[REQUESTS];             /* vLLM's client has hung up */

bit life;                           /* of the gate: changes with its restart */
bool listens[REQUESTS];             /* the relay of that request */
bool revoked[REQUESTS];
bool answered[REQUESTS];
bool served[REQUESTS];
byte writing[REQUESTS];
byte done[REQUESTS];
bool crashed;

chan steps[RANKS] = [REQUESTS] of { byte };
chan jobs[RANKS] = [REQUESTS] of { byte };

#ifdef NO_REVOKE
#define FAIL(q) revoked[q] = true
#define LETS_THROUGH(q) listens[q]
#else
#define FAIL(q) revoked[q] = true; listens[q] = false
#define LETS_THROUGH(q) (listens[q] && !revoked[q])
#endif
#ifdef FORGET_WRITERS
#define OVER(q) (answered[q] && (done[q] == RANKS || revoked[q]))
#else
#define OVER(q) (answered[q] && (done[q] == RANKS || (revoked[q] && writing[q] == 0)))
#endif
#ifdef NO_SETTLE
#define OUT_OF_VLLM(q) true
#else
#define OUT_OF_VLLM(q) (vllm[q] != SUBMITTED)
#endif

/* The engine: takes requests in any order; all ranks run its steps in that order. It forgets an aborted one. */
active proctype Engine() {
end:	do
	:: atomic { vllm[0] == SUBMITTED -> vllm[0] = RUNNING; steps[0]!0; steps[1]!0; steps[2]!0 }
	:: atomic { vllm[1] == SUBMITTED -> vllm[1] = RUNNING; steps[0]!1; steps[1]!1; steps[2]!1 }
	:: atomic { vllm[0] == SUBMITTED && aborted[0] -> vllm[0] = DROPPED }
	:: atomic { vllm[1] == SUBMITTED && aborted[1] -> vllm[1] = DROPPED }
	od
}

/* A rank's model thread: wakes the sender, then copies KV into the buffer over whatever lies there. */
proctype Model(byte rank) {
	bit q;
end:	do
	:: atomic { steps[rank]?q -> jobs[rank]!q };
		atomic { staging[rank] = q; extracted[AT(rank, q)] = true; q = 0 }
	od
}

/* A rank's sender thread: one request after the other. Its handshake, which may be slow, refused for now and tried
   again, or never answered, changes nothing until it ends; so it is one step, at any later time. So is the transfer:
   any earlier reading of the buffer is another run of the model. */
proctype Sender(byte rank) {
	bit q, mine;
end:	do
	:: jobs[rank]?q;
		if
		:: atomic { !listens[q] -> goto next }                          /* nobody there, or cut meanwhile */
		:: atomic { listens[q] -> FAIL(q); goto next }                  /* refused, unreachable, settings differ */
		:: atomic { LETS_THROUGH(q) -> mine = life; writing[q]++ }      /* consent passes the gate */
		fi;
		atomic {
			extracted[AT(rank, q)];
			assert(staging[rank] == q || life != mine);             /* the transfer reads the buffer */
			if
			:: life == mine -> writing[q]--; done[q]++
			:: life == mine -> writing[q]--; FAIL(q)                /* breaks off */
			:: life != mine                                         /* done is lost with the old gate */
			fi
		};
next:		atomic { q = 0; mine = 0 }
	od
}

/* One request's turn. A deadline may pass at any moment. */
inline turn(q) {
	atomic { listens[q] = true; revoked[q] = false; vllm[q] = SUBMITTED };
	do
	:: atomic { !answered[q] && extracted[AT(0, q)] -> answered[q] = true }
	:: atomic { !answered[q] && !revoked[q] -> aborted[q] = true; FAIL(q) };  /* the answer is lost */
		OUT_OF_VLLM(q); answered[q] = true
	:: atomic { !revoked[q] -> FAIL(q) }
	:: OVER(q) -> break
	:: atomic { !crashed -> crashed = true; life++; listens[q] = false; revoked[q] = true; aborted[q] = true };
		OUT_OF_VLLM(q); break                                           /* killed; the next one settles first */
	od;
	atomic { listens[q] = false; served[q] = true }
}

proctype Gate(byte only) {
	do
	:: !served[0] && only != 1 -> turn(0)
	:: !served[1] && only != 0 -> turn(1)
	:: (served[0] || only == 1) && (served[1] || only == 0) -> break
	od
}

init {
	atomic {
		run Model(0); run Model(1); run Model(2);
		run Sender(0); run Sender(1); run Sender(2);
#ifdef NO_TURNS
		run Gate(0); run Gate(1)
#else
		run Gate(2)
#endif
	}
}
